"""Benchmarks: cost and speed of Cortex, measured beside alternatives. Overview and figures: README.md."""
