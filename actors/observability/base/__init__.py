"""Shared parts of telemetry: conventions, settings, exporter noise, timers."""
