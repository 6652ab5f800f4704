"""The engine: which patches there are, when their targets appear, how they are put in and taken out."""
