"""Telemetry of jobs and of the cluster: traces, metrics and logs, configured by the standard `OTEL_*` variables."""
