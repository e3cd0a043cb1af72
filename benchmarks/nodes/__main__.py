"""Entry point of ``python -m benchmarks.nodes``."""

from benchmarks.nodes.simulated_nodes import main

main()
