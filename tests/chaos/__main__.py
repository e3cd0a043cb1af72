"""``python -m tests.chaos [--rows N] [--every S] [--seed N]``: a trial on a Ray of its own, told in a few lines."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.chaos.ray_cluster import ground
from tests.chaos.trial import Outcome, Setup, trial
from tests.cluster.cluster_processes import Head, ray_head


def _say(line: str) -> None:
    print(line, flush=True)


async def _tried(head: Head, folder: Path, setup: Setup) -> Outcome:
    from actors.runtime.ray_runtime import start_runtime

    runtime = await start_runtime(head.address, {})
    try:
        with ground(head) as nodes, trial(nodes, runtime, folder, setup, _say) as one:
            return await one.run()
    finally:
        await runtime.close()


def main() -> int:
    """Run one trial; 1 where something does not hold."""
    asked = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    default = Setup()
    asked.add_argument("--rows", type=int, default=default.rows)
    asked.add_argument("--every", type=float, default=default.every_s, help="seconds between two kills, in the mean")
    asked.add_argument("--latency", type=float, default=default.latency_ms, help="of the provider, milliseconds")
    asked.add_argument("--kills", type=int, default=default.kills_max, help="at most")
    asked.add_argument("--permits", type=int, default=default.permits)
    asked.add_argument("--seed", type=int, default=default.seed)
    given = asked.parse_args()
    setup = Setup(
        rows=given.rows, every_s=given.every, latency_ms=given.latency, permits=given.permits, kills_max=given.kills,
        seed=given.seed,
    )  # fmt: skip
    with ray_head() as head, tempfile.TemporaryDirectory(prefix="ct-", dir="/tmp") as folder:
        seen = asyncio.run(_tried(head, Path(folder), setup))
    _say(seen.told())
    wrong = seen.complaints()
    for line in wrong:
        print(f"WRONG: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
