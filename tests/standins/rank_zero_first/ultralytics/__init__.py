"""A framework with nothing but a rank-0-first block, for tests that need torch and no framework."""

__version__ = "8.4.190"
