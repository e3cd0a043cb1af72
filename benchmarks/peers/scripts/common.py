"""Shared code of the peers' scripts. Each script runs in a peer's own Python, so the standard library alone is used
here.

A script makes calls 0 to N-1, checks that each has its own answer, and reports the time taken after start-up.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any

MODEL = "bench"
OUTPUT_TOKENS_MAX = 16
KEY = "sk-ant-benchmark"

Ask = Callable[[int], Awaitable[str]]


def prompt(number: int) -> str:
    """Return the prompt of one call; the benchmarks' server finds the number in it."""
    return f"Repeat this and nothing else: row {number:06d}"


def answer(number: int) -> str:
    """Return the expected answer, also given by a model that answers at once."""
    return f"row {number:06d}"


class Instant:
    """Model that answers at once and records its first question in this process."""

    first_s = 0.0

    def __call__(self, number: int) -> str:
        """Return the answer."""
        if not self.first_s:
            self.first_s = time.perf_counter()
        return answer(number)


instant = Instant()


async def at_once(number: int) -> str:
    """Return the answer as a coroutine."""
    return instant(number)


def given() -> argparse.Namespace:
    """Return the benchmark's arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--work", choices=("http", "null"), required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--at-once", type=int, required=True)
    parser.add_argument("--cpus", type=int, required=True, help="processes of a peer with several")
    parser.add_argument("--state", type=Path, required=True, help="state folder; a killed run continues with its own")
    parser.add_argument("--variant", default="", help="variant of this script")
    return parser.parse_args()


def sdk_client(url: str) -> Any:
    """Return the official SDK's client on its aiohttp transport, its fastest, without retries."""
    import anthropic

    transport = anthropic.DefaultAioHttpClient()
    return anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0, http_client=transport)


@functools.cache
def sdk_plain(url: str) -> Any:
    """Return the SDK's synchronous client, one a process."""
    import anthropic

    return anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0)


def ask_plainly(url: str, number: int) -> str:
    """Ask one question by the synchronous client."""
    messages: Any = [{"role": "user", "content": prompt(number)}]
    message = sdk_plain(url).messages.create(model=MODEL, max_tokens=OUTPUT_TOKENS_MAX, messages=messages)
    return str(message.content[0].text)


def sdk(client: Any) -> Ask:
    """Return a function that asks one question by the SDK."""

    async def ask(number: int) -> str:
        message = await client.messages.create(
            model=MODEL, max_tokens=OUTPUT_TOKENS_MAX, messages=[{"role": "user", "content": prompt(number)}]
        )
        return str(message.content[0].text)

    return ask


async def in_parallel(ask: Ask, numbers: Iterable[int], width: int) -> list[tuple[int, str]]:
    """Make all calls with as many workers as calls at once, which is faster than a task a call with a semaphore."""
    import asyncio

    left: Iterator[int] = iter(numbers)
    answers: list[tuple[int, str]] = []

    async def hand() -> None:
        for number in left:
            answers.append((number, await ask(number)))

    await asyncio.gather(*(hand() for _ in range(width)))
    return answers


def on_uvloop(work: Coroutine[Any, Any, Any]) -> Any:
    """Run on uvloop, for peers that leave the choice of the event loop to the caller."""
    import uvloop

    return uvloop.run(work)


class Began:
    """Start of a run: clock, and CPU seconds of this process."""

    def __init__(self, at_s: float | None = None) -> None:
        self.at_s = time.perf_counter() if at_s is None else at_s
        self.cpu_s = time.process_time()


def told(answers: Iterable[tuple[int, str]], calls: int, began: Began, starts: bool = False) -> None:
    """Check every answer and print the result. Raises ``AssertionError`` where an answer is missing or not its own.

    ``starts``: the run includes start-up, which is left out: time counts from the first question. Work done for every
    call before the first question is not start-up. CPU is of this process alone.
    """
    took_s = time.perf_counter() - (max(began.at_s, instant.first_s) if starts else began.at_s)
    cpu_s = time.process_time() - began.cpu_s
    found = dict(answers)
    wrong = [number for number in range(calls) if found.get(number) != answer(number)]
    assert not wrong, f"{len(wrong)} of {calls} calls have no answer of their own: {wrong[:3]}, {found.get(wrong[0])!r}"
    print(json.dumps({"answered": len(found), "took_s": took_s, "cpu_s": cpu_s}), flush=True)
