"""Interfaces of the edge: model, message batches, runtime, telemetry, rows."""
