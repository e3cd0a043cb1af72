"""Limits: adaptive concurrency, rates, pacing, fair shares, shared accounts and budget slices."""
