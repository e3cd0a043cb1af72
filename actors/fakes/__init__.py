"""Fake models for tests, and the pytest plugin that offers them."""
