"""Journals that released versions wrote, and what makes them."""
