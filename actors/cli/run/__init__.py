"""Commands that run jobs: start, resume, retry, execution, sinks."""
