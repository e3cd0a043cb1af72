"""Utilities of the actors: errors, timers, units, file systems, garbage collection."""
