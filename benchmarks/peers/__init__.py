"""Cortex beside what people would use instead: see ``python -m benchmarks.peers --help``."""
