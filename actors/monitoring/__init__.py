"""Monitors of a running job: throughput, stalls, deadlines, webhooks."""
