"""Metrics: instruments, samples, the scrape endpoint, OTLP and Ray export."""
