"""What is told to whoever looks on: traces, metrics, logs, by the standard `OTEL_*` variables."""
