"""Failures: kinds, classification, circuit breakers, retries, restarts, timeouts, failure budget, route choice."""
