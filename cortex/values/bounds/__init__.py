"""Bounds of what comes from outside: counts, and the depth of JSON."""
