"""Recorded figures: one JSON file a benchmark and day, ``DATE-BENCHMARK.json``, and the table made of them."""
