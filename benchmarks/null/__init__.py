"""Calls a second with a model that answers at once, beside what else would make the calls."""
