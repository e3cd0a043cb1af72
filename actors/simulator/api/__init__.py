"""Simulated provider: requests, replies, batches, wire format."""
