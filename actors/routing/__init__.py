"""Routing: which model at which endpoint, at which price, by which credential."""
