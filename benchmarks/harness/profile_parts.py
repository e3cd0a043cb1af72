"""Parts of the path from a row to its result, by the file in which a function stands."""

from __future__ import annotations

from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
OWN = ("cortex", "actors", "policies")

_PARTS: dict[str, str] = {
    "telemetry": "actors/observability/ actors/ports/telemetry cortex/tracing/",
    "client": "actors/providers/ actors/simulator/ actors/fakes/scripted_models actors/ports/model",
    "branch": "actors/branch/ actors/messaging/report_sender actors/routing/model_factory",
    "messages": "actors/channel/dispatch/ actors/branch/reply_outbox actors/messaging/ actors/cluster/ actors/runtime/ "
    "actors/ports/runtime actors/common/gc_tuning",
    "journal": "actors/journal/ actors/channel/journal_maintenance cortex/journal/",
    "memory": "actors/journal/reply_index actors/channel/reply_cache",
    "leases": "actors/channel/leases/ actors/scheduler/ actors/driver/control_note cortex/control/ cortex/scheduler/ "
    "policies/failures/breaker policies/failures/restart policies/limits/",
    "driver": "actors/driver/ actors/files/ actors/api/ actors/jobs/ actors/monitoring/ actors/cli/ actors/limits/ "
    "actors/history/results actors/common/shadowing",
    "select": "cortex/admission/permits cortex/calls/cache_warming cortex/calls/request cortex/calls/route_lanes "
    "cortex/values/ledger cortex/values/prompt cortex/values/template policies/decisions/selection "
    "policies/estimates/tokens policies/estimates/price policies/failures/failure_budget "
    "policies/failures/route_choice",
    "absorb": "cortex/calls/attempts cortex/calls/answers cortex/calls/voting cortex/goals/apply_changes "
    "cortex/goals/lifecycle cortex/goals/result_list cortex/tracing/call_records cortex/state/changes "
    "cortex/state/goals cortex/state/items cortex/values/counters cortex/values/election cortex/values/reply "
    "policies/decisions/voting policies/failures/retry policies/failures/failure",
    "rows": "cortex/loop/event_handlers",
    "program": "cortex/programs/ cortex/flows/ cortex/state/program cortex/calls/program_hooks",
    "step": "cortex/ policies/ cortex/programs/batch_replay cortex/tracing/single_call_goals "
    "cortex/tracing/trace_assignment",
    "channel": "actors/",
}
"""Beginnings of paths; the longest beginning that fits decides."""

_BEGINNINGS = sorted(
    ((beginning, part) for part, some in _PARTS.items() for beginning in some.split()),
    key=lambda each: -len(each[0]),
)


def unused() -> list[str]:
    """Return the beginnings that no Python file of the checkout has."""
    paths = [str(path.relative_to(ROOT)) for package in OWN for path in (ROOT / package).rglob("*.py")]
    beginnings = [beginning for some in _PARTS.values() for beginning in some.split()]
    return [beginning for beginning in beginnings if not any(path.startswith(beginning) for path in paths)]


@cache
def own(path: str) -> str:
    """Return a file of the three packages relative to the checkout; empty for all other files."""
    name = path.removeprefix(f"{ROOT}/")
    return name if name.partition("/")[0] in OWN else ""


@cache
def part(path: str) -> str:
    """Return the part of one of our files; for other files the library."""
    if name := own(path):
        return next(part for beginning, part in _BEGINNINGS if name.startswith(beginning))
    pieces = Path(path).parts
    for at, piece in enumerate(pieces):
        if piece in ("site-packages", "dist-packages"):  # also true of an environment inside the checkout
            return pieces[at + 1].removesuffix(".py")
    if path.startswith(f"{ROOT}/"):
        return "benchmark"
    return "asyncio" if "asyncio" in pieces or "uvloop" in path else "standard library"
