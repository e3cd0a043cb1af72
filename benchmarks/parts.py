"""Which part of the road from a row to its result a function belongs to, by the file that it stands in."""

from __future__ import annotations

from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWN = ("cortex", "actors", "policies")

_PARTS: dict[str, str] = {
    "telemetry": "actors/observing/ actors/watching actors/telemetry cortex/tracing cortex/traced cortex/spans "
    "cortex/spanning",
    "client": "actors/provider/ actors/model actors/simulator/ actors/scripted",
    "branch": "actors/branch actors/hands actors/under_way actors/bound actors/counting actors/keyring actors/reporter "
    "actors/armoury",
    "messages": "actors/dispatch actors/links actors/courier actors/parcel actors/along actors/inbox "
    "actors/cluster/ actors/runtime actors/inline "
    "actors/ports",
    "journal": "actors/sqlite/ actors/store actors/storage actors/postgres/ actors/upkeep actors/patience "
    "cortex/journal",
    "memory": "actors/memory actors/recalling",
    "leases": "actors/lease actors/allowance actors/cortex_actor actors/control actors/supervising actors/breakers "
    "cortex/scheduler cortex/control/ cortex/health cortex/staff cortex/shares cortex/lending cortex/pools "
    "cortex/signals cortex/tenancy cortex/cluster cortex/claiming policies/breaker policies/probing "
    "policies/limit policies/pace policies/restart",
    "driver": "actors/driver actors/files/ actors/client actors/session actors/order actors/live actors/speed "
    "actors/promise actors/summary actors/outlet actors/cli/ actors/bar actors/caps",
    "select": "cortex/asking cortex/prompt cortex/template cortex/permits cortex/ledger cortex/lanes cortex/warming "
    "policies/selection policies/tokens policies/budget policies/price policies/route",
    "absorb": "cortex/answers cortex/attempts cortex/exchanges cortex/changes cortex/plain_changes cortex/results "
    "cortex/reply cortex/moves cortex/goals cortex/items cortex/transitions cortex/tally cortex/votes cortex/election "
    "policies/voting policies/retry policies/failure",
    "rows": "cortex/intake",
    "program": "cortex/programs/ cortex/flows/ cortex/program cortex/authored",
    "step": "cortex/ policies/",
    "channel": "actors/",
}
"""Beginnings of paths. Of those that fit, the longest counts."""

_BEGINNINGS = sorted(
    ((beginning, part) for part, some in _PARTS.items() for beginning in some.split()),
    key=lambda each: -len(each[0]),
)


@cache
def own(path: str) -> str:
    """Where a file of the three packages stands, from the root of the checkout; empty for all other files."""
    name = path.removeprefix(f"{ROOT}/")
    return name if name.partition("/")[0] in OWN else ""


@cache
def part(path: str) -> str:
    """The part that a file of ours is; of other files the library that it is of."""
    if name := own(path):
        return next(part for beginning, part in _BEGINNINGS if name.startswith(beginning))
    pieces = Path(path).parts
    for at, piece in enumerate(pieces):
        if piece in ("site-packages", "dist-packages"):  # they may lie in the checkout, too
            return pieces[at + 1].removesuffix(".py")
    if path.startswith(f"{ROOT}/"):
        return "benchmark"
    return "asyncio" if "asyncio" in pieces or "uvloop" in path else "standard library"
