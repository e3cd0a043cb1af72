"""Decisions: joins, votes, sampling, selection, stagnation."""
