"""Leases of a channel: permits of pools, slices of budgets, shares of a parent job."""
