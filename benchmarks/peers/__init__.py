"""Comparison of Cortex with alternatives: see ``python -m benchmarks.peers --help``."""
