"""Limits: adaptive concurrency, rates, pacing, fair shares, budget slices."""
