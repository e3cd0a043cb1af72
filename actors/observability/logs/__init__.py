"""Logs: formatting, job events, Ray actor logs, OTLP export."""
