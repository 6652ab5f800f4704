"""The matrix of versions: what is installed, what is run on it, and what came of it. Used by noxfile.py."""
