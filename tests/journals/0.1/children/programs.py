"""The program of a kept journal: two child jobs, each a chain of questions. Copied beside the journal that it made."""

from __future__ import annotations

import cortex


@cortex.flow
async def chain(ctx: cortex.Context, name: str = "a", steps: int = 6) -> list[str]:
    """One question after the other; each holds the answer before."""
    lines = [name]
    for step in range(steps):
        lines.append(await ctx.ask(f"Echo: step {step} of {name} after {len(lines[-1])}"))
    return lines


@cortex.flow
async def parent(ctx: cortex.Context) -> list[list[str]]:
    """Two children and one more question."""
    parts = await ctx.map(lambda name: ctx.run(chain(name=name)), ["left", "right"])
    last = await ctx.ask(f"Echo: both are done after {len(parts)}")
    return [*parts, [last]]
