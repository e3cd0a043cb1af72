"""Baselines: one process with an event loop and the SDK, and the same loop on the client of a branch.

``python -m benchmarks.harness.baselines sdk --url URL --first 0 --calls 1000`` asks the benchmarks' server and checks
every answer. ``sdk`` is `messages.create` on aiohttp as users write it, with retries off and workers in place of one
task a call, which is faster; ``openai_sdk`` is `chat.completions.create` of OpenAI's SDK, likewise. ``bare`` is
`actors.providers.messages.client` alone: no rows, journal, retry or budget.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from benchmarks.harness.rows import MODEL, OUTPUT_TOKENS_MAX, Lost, params, prompt

KEY = "sk-ant-benchmark"
TIMEOUT_S = 60.0
THERE = "there"

Ask = Callable[[int], Awaitable[str]]


def when_told(numbers: Iterable[int]) -> Iterator[int]:
    """Yield the numbers after a handshake: print a line when ready, then wait for a line, so that loops measured
    together start together."""
    print(THERE, flush=True)
    sys.stdin.readline()
    yield from numbers


async def in_parallel(ask: Ask, numbers: Iterator[int], at_once: int) -> int:
    """Ask all numbers, ``at_once`` concurrently; return the number answered. Raises ``Lost`` for a wrong answer."""
    answered = 0

    async def hand() -> None:
        nonlocal answered
        for number in numbers:
            text = await ask(number)
            if text != f"row {number:06d}":
                raise Lost(f"row {number:06d} was answered with {text!r}")
            answered += 1

    async with asyncio.TaskGroup() as hands:
        for _ in range(at_once):
            hands.create_task(hand())
    return answered


async def sdk(url: str, numbers: Iterator[int], at_once: int) -> int:
    """Ask by `messages.create` of the official SDK on its aiohttp transport."""
    import anthropic
    from anthropic.types import TextBlock

    transport = anthropic.DefaultAioHttpClient()
    async with anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0, http_client=transport) as client:

        async def ask(number: int) -> str:
            message = await client.messages.create(
                model=MODEL,
                max_tokens=OUTPUT_TOKENS_MAX,
                messages=[{"role": "user", "content": prompt(number)}],
            )
            block = message.content[0]
            assert isinstance(block, TextBlock)
            return block.text

        return await in_parallel(ask, numbers, at_once)


async def openai_sdk(url: str, numbers: Iterator[int], at_once: int) -> int:
    """Ask by `chat.completions.create` of OpenAI's SDK on its aiohttp transport."""
    import openai

    transport = openai.DefaultAioHttpClient()
    async with openai.AsyncOpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0, http_client=transport) as client:

        async def ask(number: int) -> str:
            completion = await client.chat.completions.create(
                model=MODEL,
                max_tokens=OUTPUT_TOKENS_MAX,
                messages=[{"role": "user", "content": prompt(number)}],
            )
            return completion.choices[0].message.content or ""

        return await in_parallel(ask, numbers, at_once)


async def bare(url: str, numbers: Iterator[int], at_once: int, by_sdk: bool = False) -> int:
    """Ask by the client of a branch alone, or by the SDK's own client behind the same interface."""
    from actors.providers.credentials.credential import Credential
    from actors.providers.messages.client import AnthropicModel
    from cortex.values.reply import Reply

    model = AnthropicModel(Credential(api_key=KEY, base_url=url), concurrency=at_once, through_sdk=by_sdk)
    await model.open()
    gc.collect()
    gc.freeze()

    async def ask(number: int) -> str:
        body = msgspec.json.encode(params(number))
        reply = await model.call(body, output_tokens_max=OUTPUT_TOKENS_MAX, timeout_s=TIMEOUT_S)
        if not isinstance(reply, Reply):
            raise Lost(f"row {number:06d} failed: {reply.message}")
        return reply.text

    try:
        return await in_parallel(ask, numbers, at_once)
    finally:
        await model.close()


ROADS: dict[str, Callable[[str, Iterator[int], int], Coroutine[Any, Any, int]]] = {
    "sdk": sdk, "openai_sdk": openai_sdk, "bare": bare, "bare_by_sdk": partial(bare, by_sdk=True)
}  # fmt: skip


def main() -> None:
    """Run one of the baselines from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("road", choices=sorted(ROADS))
    parser.add_argument("--url", required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--wait", action="store_true", help="print a line when ready, start when a line arrives")
    given = parser.parse_args()
    calls = range(given.first, given.first + given.calls)
    numbers = when_told(calls) if given.wait else iter(calls)
    work = ROADS[given.road](given.url, numbers, given.at_once)
    if given.uvloop:
        import uvloop

        answered = uvloop.run(work)
    else:
        answered = asyncio.run(work)
    if answered != given.calls:
        raise Lost(f"{answered} of {given.calls} calls were answered")
    print(answered)


if __name__ == "__main__":
    main()
