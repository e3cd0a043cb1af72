"""Shared parts of the benchmarks: local provider, requests, commands, counting, measurement of processes."""
