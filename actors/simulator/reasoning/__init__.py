"""Answers of the simulated model: prompt reading, text, lengths."""
