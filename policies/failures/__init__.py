"""Failures: kinds, breaker, retry, restart, timeout, route choice."""
