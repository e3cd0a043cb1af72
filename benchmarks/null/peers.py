"""Alternatives with a model that answers at once: ``python -m benchmarks.null.peers actor``.

``actor``: one call of a Ray actor a call, two actors, ``AHEAD`` calls sent ahead; ``task``: one Ray task a call;
``asyncio``: one event loop task a call, gathered. All use the same model and requests, and check every answer. Nothing
is on disk, bounded or repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from benchmarks.harness import rows
from benchmarks.harness.models import AtOnce
from cortex.values.reply import Reply, text_of

AHEAD = 1_000
"""Calls sent before the first is awaited; Ray warns when many thousands wait."""
ACTORS = 2


class Branch:
    """Ray actor that holds the model and nothing else."""

    def __init__(self) -> None:
        self._model = AtOnce()

    async def ask(self, body: bytes) -> bytes:
        """Make one call."""
        return await answered(self._model, body)


async def answered(model: AtOnce, body: bytes) -> bytes:
    """Return the reply's body."""
    reply = await model.call(body, output_tokens_max=rows.OUTPUT_TOKENS_MAX, timeout_s=60.0)
    assert isinstance(reply, Reply)
    return reply.body


def bodies(calls: int) -> Iterator[bytes]:
    """Yield the requests."""
    return (msgspec.json.encode(rows.params(number)) for number in range(calls))


def on_ray(road: str, calls: int) -> tuple[float, list[bytes]]:
    """Return the seconds from the first call to the last answer, and the answers, on Ray."""
    import ray

    ray.init(address="local", num_cpus=ACTORS, include_dashboard=False, log_to_driver=False)
    try:
        send: Callable[[int, bytes], Any]
        if road == "actor":
            made: Any = ray.remote(Branch)
            actors = [made.remote() for _ in range(ACTORS)]
            ask = [actor.ask for actor in actors]
            send = lambda place, body: ask[place % ACTORS].remote(body)  # noqa: E731
        else:
            task: Any = ray.remote(_alone)
            send = lambda place, body: task.remote(body)  # noqa: E731
        ray.get([send(place, body) for place, body in enumerate(bodies(200))])  # starts the processes
        began_s = time.perf_counter()
        under_way: list[Any] = []
        found: list[bytes] = []
        for place, body in enumerate(bodies(calls)):
            under_way.append(send(place, body))
            if len(under_way) >= AHEAD:
                found += ray.get(under_way[: AHEAD // 2])
                del under_way[: AHEAD // 2]
        found += ray.get(under_way)
        return time.perf_counter() - began_s, found
    finally:
        ray.shutdown()


def _alone(body: bytes) -> bytes:
    """Make one call in a Ray task."""
    work = answered(AtOnce(), body)
    try:
        work.send(None)  # the coroutine never waits, so no event loop is needed
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise AssertionError("the model waits")


def in_a_loop(calls: int) -> tuple[float, list[bytes]]:
    """Return the seconds from the first call to the last answer, and the answers, in one event loop."""

    async def all_of_them() -> list[bytes]:
        model = AtOnce()
        return await asyncio.gather(*(answered(model, body) for body in bodies(calls)))

    began_s = time.perf_counter()
    found = asyncio.run(all_of_them())
    return time.perf_counter() - began_s, found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("road", choices=("actor", "task", "asyncio"))
    parser.add_argument("--calls", type=int, default=5_000)
    given = parser.parse_args()
    took_s, found = in_a_loop(given.calls) if given.road == "asyncio" else on_ray(given.road, given.calls)
    rows.check_all(((f"r{number:06d}", text_of(body)) for number, body in enumerate(found)), given.calls)
    print(msgspec.json.encode({"calls_per_s": given.calls / took_s}).decode(), flush=True)


if __name__ == "__main__":
    main()
