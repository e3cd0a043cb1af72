"""What people would write instead, with a model that answers at once: ``python -m benchmarks.null.peers actor``.

``actor``: one call of a Ray actor a call, two actors, so many sent ahead; ``task``: one Ray task a call; ``asyncio``:
one task of an event loop a call, gathered. The same model, the same requests; every answer is checked. Nothing is on
disk, nothing bounded, nothing repeated.
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
"""Calls that are sent before the first of them is waited for; Ray warns where many thousands wait."""
ACTORS = 2


class Branch:
    """What is an actor of Ray's here: the model, and nothing else."""

    def __init__(self) -> None:
        self._model = AtOnce()

    async def ask(self, body: bytes) -> bytes:
        """One call."""
        return await answered(self._model, body)


async def answered(model: AtOnce, body: bytes) -> bytes:
    """The reply's body."""
    reply = await model.call(body, output_tokens_max=rows.OUTPUT_TOKENS_MAX, timeout_s=60.0)
    assert isinstance(reply, Reply)
    return reply.body


def bodies(calls: int) -> Iterator[bytes]:
    """The requests."""
    return (msgspec.json.encode(rows.params(number)) for number in range(calls))


def on_ray(road: str, calls: int) -> tuple[float, list[bytes]]:
    """Seconds from the first call to the last answer, and the answers."""
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
        ray.get([send(place, body) for place, body in enumerate(bodies(200))])  # its processes are there
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
    """One call, of a task of Ray's."""
    work = answered(AtOnce(), body)
    try:
        work.send(None)  # it waits for nothing, so no event loop is made for it
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise AssertionError("the model waits")


def in_a_loop(calls: int) -> tuple[float, list[bytes]]:
    """The same of one event loop."""

    async def all_of_them() -> list[bytes]:
        model = AtOnce()
        return await asyncio.gather(*(answered(model, body) for body in bodies(calls)))

    began_s = time.perf_counter()
    found = asyncio.run(all_of_them())
    return time.perf_counter() - began_s, found


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("road", choices=("actor", "task", "asyncio"))
    parser.add_argument("--calls", type=int, default=5_000)
    given = parser.parse_args()
    took_s, found = in_a_loop(given.calls) if given.road == "asyncio" else on_ray(given.road, given.calls)
    rows.check_all(((f"r{number:06d}", text_of(body)) for number, body in enumerate(found)), given.calls)
    print(msgspec.json.encode({"calls_per_s": given.calls / took_s}).decode(), flush=True)


if __name__ == "__main__":
    main()
