"""Sinks of results: JSON Lines, tables, recovery of a partial file."""
