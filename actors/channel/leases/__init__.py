"""Leases that a channel holds: permits of pools, slices of budgets, shares of a parent job."""
