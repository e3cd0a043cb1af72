"""``python -m tests.simulation SEED [--transcript]``: replay a seed. ``--soak N``: run N seeds on ``--cores``."""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulation.runner import live


def main() -> int:
    """Run the command; return exit code 1 if an invariant does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--transcript", action="store_true", help="tell all that happens")
    parser.add_argument("--soak", type=int, metavar="SEEDS", help="run so many seeds on all cores")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="all, where it is not given")
    options = parser.parse_args()
    if options.soak:
        from tests.simulation.soak import soak

        return soak(options.first, options.soak, options.cores)
    if options.seed is None:
        parser.error("give a seed, or --soak SEEDS")
    verdict = live(options.seed, print if options.transcript else None)
    print(
        f"seed {verdict.seed}: {verdict.broken or 'every invariant holds'}\n{verdict.calls} calls, {verdict.events}"
        f" events, {verdict.deaths} deaths, {verdict.virtual_s:.0f} virtual seconds, {verdict.callbacks} callbacks"
    )
    return 1 if verdict.broken else 0


if __name__ == "__main__":
    sys.exit(main())
