"""Traces: spans, their encoding, the export queue."""
