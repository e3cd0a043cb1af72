"""Limits kept outside jobs: budgets, operator overrides, shared accounts."""
