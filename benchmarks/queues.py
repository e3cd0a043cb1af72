"""Calls held in flight at servers that queue: ``python -m benchmarks.queues --json``.

All of it is **simulated**, in virtual time, with the real policies (`tests.support.queue_simulation`): a job without
end at servers of 1 to 1,024 slots and 0.2 to 85 seconds a call, whose lengths differ, and at servers whose batch
works the slower on each call the more it holds (`half`: calls at which each takes twice its time). `told`: seconds
after which the server's metrics count anew; 0: it has none. Measured from a
minute or eight calls' time on, whichever is longer: the share used of what the server can do, the mean and the most
calls that waited as shares of the slots, the most before that, attempts that timed out, and openings of the breaker.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.harness import figures
from tests.support.queue_simulation import Queues, Server

SLOTS = (1, 8, 64, 256, 1_024)
SECONDS = (0.2, 2.0, 10.0, 30.0, 85.0)
CALLS_MAX = 150_000
"""Calls of one simulation at most: servers of more are left out."""


def measure(slots: int, mean_s: float, half: float, told_s: float, seed: int) -> dict[str, Any]:
    """Measure one server."""
    from_s = max(60.0, 8 * mean_s)
    until_s = from_s + max(60.0, 10 * mean_s)
    found = Queues(Server(slots=slots, mean_s=mean_s, half=half), seed=seed, told=told_s).run(until_s)
    return {
        "slots": slots,
        "seconds": mean_s,
        "half": half,
        "told": told_s,
        "used": round(found.used(from_s, until_s), 3),
        "waiting": round(found.waiting(from_s, until_s) / slots, 2),
        "waiting_most": round(found.waiting_max(from_s, until_s) / slots, 2),
        "waiting_most_before": round(found.waiting_max(0, from_s) / slots, 2),
        "timed_out": found.timed_out,
        "breaker_opened": found.opened,
    }


def servers() -> list[tuple[int, float, float]]:
    """Return slots, seconds a call and `half` of each server."""
    even = [(slots, mean_s, 0.0) for slots in SLOTS for mean_s in SECONDS]
    batches = [(slots, 2.0, half) for slots in (64, 256) for half in (16.0, 64.0)]
    return [each for each in even + batches if each[0] * 2 * max(60.0, 9 * each[1]) / each[1] <= CALLS_MAX]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found = [measure(*server, told_s, given.seed) for told_s in (0.0, 1.0) for server in servers()]
    if given.json:
        figures.tell({"machine": figures.machine(), "provider": "simulated", "servers": found})
        return
    print("simulated:", ", ".join(found[0]))
    for each in found:
        print("  ".join(f"{value:>7}" for value in each.values()))


if __name__ == "__main__":
    main()
