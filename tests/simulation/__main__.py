"""``python -m tests.simulation SEED [--transcript]``: replay a seed. ``--soak N``: run N seeds on ``--cores``.

``SEED --shrink``: the shortest script that fails like the seed; ``--script FILE``: replay its JSON. ``--faults
[NAME...]``: run 2,000 seeds from ``--first`` until each planted fault is found.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.simulation.runner import live
from tests.simulation.shrinking import decoded, shrunk_seed


def main() -> int:
    """Run the command; return exit code 1 if an invariant does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--transcript", action="store_true", help="tell all that happens")
    parser.add_argument("--shrink", action="store_true", help="find the shortest script that fails alike")
    parser.add_argument("--script", metavar="FILE", help="replay a script, as JSON")
    parser.add_argument("--soak", type=int, metavar="SEEDS", help="run so many seeds on all cores")
    parser.add_argument("--faults", nargs="*", metavar="NAME", help="find planted faults, all where none is named")
    parser.add_argument("--worlds", type=int, default=2_000, help="worlds that are run for each fault at most")
    parser.add_argument("--first", type=int, help="the first seed of a soak, or of the search for faults")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="all, where it is not given")
    options = parser.parse_args()
    if options.soak:
        from tests.simulation.soak import soak

        return soak(options.first or 0, options.soak, options.cores)
    if options.faults is not None:
        from tests.simulation.fault_search import FIRST, SEEDS, told

        first = FIRST if options.first is None else options.first
        return told(options.faults, options.cores, first, SEEDS, options.worlds)
    made = decoded(Path(options.script).read_bytes()) if options.script else None
    if made is not None:
        options.seed = made.seed
    if options.seed is None:
        parser.error("give a seed, --script FILE, or --soak SEEDS")
    if options.shrink:
        print(shrunk_seed(options.seed))
        return 0
    verdict = live(options.seed, print if options.transcript else None, made)
    print(
        f"seed {verdict.seed}: {verdict.broken or 'every invariant holds'}\n{verdict.calls} calls, {verdict.events}"
        f" events, {verdict.deaths} deaths, {verdict.virtual_s:.0f} virtual seconds, {verdict.callbacks} callbacks"
    )
    return 1 if verdict.broken else 0


if __name__ == "__main__":
    sys.exit(main())
