"""What runs inside a job: who takes part, the channel through the store, the waits, the end.

Knows ``torch.distributed``, and no framework. Nothing here is loaded before torch.
"""
