"""A rank that waits without progress: noticed, put together with what the others say, and reported.

``monitor`` looks and asks, ``rounds`` collects the posts of all ranks, ``standing`` tells from a stack what a
rank is doing, ``findings`` says what follows, ``report`` puts it into words. Nothing here is loaded before
torch, and nothing of torch is wrapped for it.
"""
