"""Run of a program over the core's own step and the simulated provider: no channel, disk or clock between.

Used for claims about prompts and replies, with more calls than a whole run could make in the time. Each turn is one
step that absorbs all replies of the turn before. The provider checks each request against M as always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from actors.simulator.api import wire
from actors.simulator.api.provider import SimulatedProvider
from actors.simulator.settings import SimulatorSettings
from cortex.journal import codec
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import State
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.plain_values import to_plain
from cortex.values.reply import Reply, Usage


class Ended(msgspec.Struct):
    """Outcome of a run: final K, emitted results, answer, provider."""

    k: State
    emitted: list[Any]
    answer: Any
    provider: SimulatedProvider

    @property
    def samples(self) -> int:
        """Number of calls made."""
        return self.k.tally.calls

    @property
    def discarded(self) -> int:
        """Number of discarded (malformed) replies."""
        return self.k.tally.failures.get("malformed", 0)

    @property
    def largest_prompt_tokens(self) -> int:
        """Tokens of the largest request by the provider's count; the provider refuses requests over its window."""
        assert not self.provider.tally.prompts_too_long
        return self.provider.tally.largest_prompt_tokens


UNMET = "nothing is left to do and the goal is not met"


def run(
    program: Program, settings: SimulatorSettings, concurrency: int = 256,
    watch: Callable[[State], None] | None = None, parts_max: int = 200, unmet: bool = False,
) -> Ended:  # fmt: skip
    """Run a program to its end. ``watch`` is called with K after every turn; ``unmet``: the goal may stay unmet.

    Raises ``RuntimeError`` if the job fails.
    """
    provider = SimulatedProvider(settings)
    limits = Limits(concurrency=concurrency, window_rows=max(2_048, concurrency), parts_max=parts_max)
    route = Route(endpoint="sim", model="sim", context_window=settings.context_window)
    terms = JobTerms(job="claim", program="claim", params_json=b"{}", fingerprint="", route=route, limits=limits)
    k, emitted = codec.open_job(terms), []
    happened: tuple[events.Event, ...] = (events.Opened(terms, 1), events.PermitsGranted(concurrency))
    at_s = 0.0
    while not k.outcome:
        if not happened:
            raise RuntimeError(f"nothing happens any more: {k.tally}")
        at_s += 1.0
        out = step(k, program, events.Turn(at_s, (happened,)))
        emitted += [command.value for command in out if type(command) is commands.EmitResult]
        if watch is not None:
            watch(k)
        answered = tuple(_answered(provider, command) for command in out if type(command) is commands.Call)
        ran = tuple(_ran(program, command, at_s) for command in out if type(command) is commands.StartToolRun)
        happened = answered + ran
    if k.outcome != "complete" and not (unmet and k.why.startswith(UNMET)):
        raise RuntimeError(f"{k.outcome}: {k.why}")
    return Ended(k, emitted, program.answer(k), provider)


def _ran(program: Program, run: commands.StartToolRun, at_s: float) -> events.Observed:
    """Run a tool of the program here. An exception is an error of the benchmark."""
    return events.Observed(run.goal, run.attempt, to_plain(program.tools[run.tool](**run.arguments)), at_s)


def _answered(provider: SimulatedProvider, call: commands.Call) -> events.Answered:
    outcome = provider.decide(call.body, 0.0)
    assert outcome.ask is not None and outcome.answer is not None, outcome.refusal
    usage = Usage(outcome.ask.input_tokens, outcome.answer.output_tokens)
    reply = Reply(wire.encoded(outcome.message()), outcome.answer.stop_reason, outcome.ask.model, usage)
    return events.Answered(call.goal, call.sample, call.attempt, call.hash, reply)
