"""Tracing: a fold over turns that makes spans."""
