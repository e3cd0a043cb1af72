"""Small flows for property tests; together they use everything that ``ctx`` offers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

import cortex
from tests.support.sample_programs import digest

Side = Literal["yes", "no"]


class Tally(msgspec.Struct):
    """State of a round."""

    round: int = 0
    said: list[str] = []


@cortex.tool(repeatable=True)
def measure(text: str) -> str:
    """Tool that never runs: the test's environment answers for it."""
    raise AssertionError(text)


@cortex.tool
def deed(times: int) -> str:
    """Tool that never runs, and must not be repeated."""
    raise AssertionError(times)


@cortex.flow
async def chain(ctx: cortex.Context, steps: int = 6) -> list[str]:
    """Flow of one question after another; each contains the answer before."""
    lines = ["begin"]
    for step in range(steps):
        lines.append(await ctx.ask(f"step {step} after {lines[-1]}"))
    return lines


async def _judged(ctx: cortex.Context, name: str) -> str:
    first = await ctx.ask(f"judge {name}")
    if digest(first) % 2:
        return str(await ctx.ask(f"again {name} {first}"))
    return str(first)


@cortex.flow
async def tree(ctx: cortex.Context, names: tuple[str, ...] = ("a", "b", "c", "d", "b")) -> Any:
    """Flow of nested maps and joins, all of kind ``all``: the order of arrival makes no difference."""
    judged = await ctx.map(lambda name: _judged(ctx, name), names, at_once=3)
    votes = await ctx.map(lambda said: ctx.ask(f"vote {said}", returns=Side, samples=3), judged)
    both = await ctx.join(ctx.ask(f"sum {judged}"), ctx.map(lambda n: ctx.ask(f"part {n}"), range(3)))
    drawn = await ctx.map(lambda n: _drawn(ctx, n), range(3))
    return {"judged": judged, "votes": votes, "both": list(both), "partial": both.partial, "drawn": drawn}


async def _drawn(ctx: cortex.Context, number: int) -> float:
    await ctx.ask(f"before the draw {number}")
    return ctx.random()


@cortex.flow
async def races(ctx: cortex.Context, width: int = 5) -> Any:
    """Flow of quorums, deadlines, kept and dropped failures, tools, sleep, randomness and time: order decides, and is
    replayed.
    """
    first = await ctx.join(*(ctx.ask(f"race {n}") for n in range(width)), quorum=2)
    slow = await ctx.join(_naps(ctx), _judged(ctx, "nap"), ctx.run(measure, "x", on_failure="keep"), deadline_s=2.5)
    kept = await ctx.map(lambda n: ctx.run(deed, n), range(3), on_failure="keep")
    held = await ctx.map(lambda n: ctx.ask(f"hold {n}"), range(4), on_failure="drop")
    if ctx.random() < 0.5:
        held.append(await ctx.ask(f"lucky {len(held)}", on_failure="keep"))
    try:
        held.append(await ctx.ask("vote strictly", returns=Side, again=0, sample=7))
    except cortex.CallFailed as failed:
        held.append(failed.kind)
    ctx.log("held", len(held))
    return [list(first), first.missing, list(slow), slow.partial, kept, held, ctx.now() > 0]


async def _naps(ctx: cortex.Context) -> str:
    for _ in range(3):
        await ctx.sleep(0.7)
        await ctx.ask("while it slept", sample=int(ctx.random() * 1_000))
    return "rested"


@cortex.flow
async def rounds(ctx: cortex.Context, count: int = 7) -> Any:
    """Flow of a plan, and rounds under a checkpoint: no round leaves more than the last one in K."""
    plan = await ctx.map(lambda n: ctx.ask(f"plan {n}"), range(2))
    state = Tally()
    while True:
        state = await ctx.checkpoint(state)
        if state.round == count:
            return {"plan": plan, "said": state.said, "drawn": ctx.random()}
        state = await _round(ctx, state, plan)


async def _round(ctx: cortex.Context, state: Tally, plan: list[str]) -> Tally:
    some = await ctx.map(lambda n: ctx.ask(f"round {state.round} of {n}"), plan)
    late = await ctx.join(ctx.ask(f"late {state.round}"), ctx.sleep(0.5), quorum=1)
    return Tally(state.round + 1, [*state.said[-3:], f"{some[0]} {len(late)} {ctx.random():.3f}"])


@cortex.flow
async def asks_people(ctx: cortex.Context) -> Any:
    """Flow that waits for a person with a deadline, and for another program."""
    draft = await ctx.ask("draft")
    ctx.log("drafted")
    there = await ctx.join(ctx.wait("hint", str), deadline_s=5.0)
    other = await ctx.run(chain(steps=2), on_failure="keep")
    if await ctx.wait("approved", bool):
        return [draft, list(there), other]
    return await ctx.ask(f"not {draft}")


ALL = {"chain": chain(), "tree": tree(), "races": races(), "rounds": rounds()}
