"""Entry point of ``python -m benchmarks.profile``."""

from benchmarks.profile.profiler import main

main()
