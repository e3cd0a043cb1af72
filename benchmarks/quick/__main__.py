"""Entry point of ``python -m benchmarks.quick``."""

from benchmarks.quick.guard import main

main()
