"""Job records: specification, opening message, limits, summary, wait reasons."""
