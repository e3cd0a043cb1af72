"""Runtimes that host the actors: one process and event loop, or Ray."""
