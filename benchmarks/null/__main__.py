"""Entry point of ``python -m benchmarks.null``."""

from benchmarks.null.throughput import main

main()
