"""Message batches of a channel: accumulation, submission, collection."""
