"""The user's files: what rows are read from, and what results are written to."""
