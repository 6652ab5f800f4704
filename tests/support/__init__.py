"""Helpers of the tests: processes, ranks, environments, data. Nothing here is loaded by itself."""
