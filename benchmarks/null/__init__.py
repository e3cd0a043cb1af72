"""Calls a second with a model that answers at once, compared with other ways to make the calls."""
