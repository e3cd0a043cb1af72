"""Admission of tool runs, by the breakers of the tools."""

from __future__ import annotations

from cortex.scheduler import health
from cortex.scheduler.protocol import AdmitToolRun, BreakerMoved, Command, ToolRunRequested, ToolRunReturned
from cortex.scheduler.reports import ToolSignals
from cortex.scheduler.state import SchedulerState, ToolState
from policies.failures import breaker
from policies.failures.breaker import BreakerState

WAIT_S = 1.0
"""Seconds until the next request while probes are out, if the duration of a run is not known."""
WAIT_LEAST_S, WAIT_MAX_S = 0.1, 10.0
"""Shortest wait in seconds if the duration of a run is known; the wait is about one duration."""


def asked(state: SchedulerState, event: ToolRunRequested) -> AdmitToolRun:
    """Decide whether a run may begin. While the tool's breaker is half open, it may begin only as a probe."""
    at_s, policy = state.at_s, state.settings.tool
    tool = state.tools.setdefault(event.tool, ToolState())
    own, tool.asked_s = tool.breaker, at_s
    if own.state is BreakerState.CLOSED:
        return AdmitToolRun(event.job, event.tool, True, 0.0, own.generation)
    if breaker.probes_wanted(policy, own, at_s) > 0:
        breaker.probe_out(policy, own, at_s, at_s + state.settings.tool_timeout_s + state.settings.restart.grace_s)
        state.wake(breaker.due_at_s(own, at_s))
        return AdmitToolRun(event.job, event.tool, True, 0.0, own.generation)
    if own.state is BreakerState.OPEN:
        wait_s = own.until_s - at_s
    else:
        takes_s = health.latency_s(tool.seen, at_s)
        wait_s = min(max(takes_s, WAIT_LEAST_S), WAIT_MAX_S) if takes_s else WAIT_S
    return AdmitToolRun(event.job, event.tool, False, max(wait_s, 0.0), own.generation)


def returned(state: SchedulerState, event: ToolRunReturned) -> None:
    """Take back the admission of a run that has not begun: a probe makes room for another. Otherwise a half-open
    breaker would wait for its answer until the probe's deadline, a minute or more.
    """
    tool = state.tools.get(event.tool)
    if tool is not None:
        breaker.observe(state.settings.tool, tool.breaker, state.at_s, event.generation, 0, 0, 0, 0.0, 0.0, void=1)


def record_signals(state: SchedulerState, signals: ToolSignals, out: list[Command]) -> None:
    """Take in a worker's report about runs."""
    at_s = state.at_s
    tool = state.tools.setdefault(signals.tool, ToolState(asked_s=at_s))
    health.record(tool.seen, at_s, 0, signals.answered, signals.failed, latency_s=signals.latency_s)
    good, bad, void = breaker.sorted_out("tool", signals.answered, signals.failed)
    if good + bad + void:
        slow = min(signals.slow, good + bad)
        draw = state.draw() if bad else 0.0
        own = tool.breaker
        was = breaker.observe(state.settings.tool, own, at_s, signals.generation, good, bad, slow, 0.0, draw, void)
        _moved(state, signals.tool, was, out)


def passed(state: SchedulerState, out: list[Command]) -> None:
    """Apply the passage of time to the tools' breakers."""
    for name, tool in state.tools.items():
        _moved(state, name, breaker.passed(state.settings.tool, tool.breaker, state.at_s), out)
        state.wake(breaker.due_at_s(tool.breaker, state.at_s))


def _moved(state: SchedulerState, name: str, was: breaker.BreakerMove | None, out: list[Command]) -> None:
    if was is not None:
        out.append(BreakerMoved(f"tool:{name}", was.old, was.new, was.why))
        state.wake(breaker.due_at_s(state.tools[name].breaker, state.at_s))
