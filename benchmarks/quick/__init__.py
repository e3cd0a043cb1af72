"""Regression guard: work counted for 10,000 calls, compared with the kept figures."""
