"""Number of calls in flight at a server that tells how many requests it works on, and how many wait there.

vLLM, SGLang, llama.cpp and TGI tell both in their metrics. The share that waits is then known, and need not be found in
durations (`queueing`): the number grows while nearly nothing waits, and then is held at what is worked on, plus the
share `QUEUE` that waits for the next free slot.

Only the share is taken from the server, never its counts: its metrics may be those of one of several replicas behind
one address. Where others ask it as well and let calls wait without bound, a job that gave way would starve: it keeps,
and grows to, half as many calls as the server works on.

Growth waits until a reading can hold the calls of the last step, since some servers count every few seconds: SGLang by
default each 40 steps of its decoding (`--decode-log-interval`).
"""

from __future__ import annotations

from typing import Final

import msgspec

QUEUE: Final = 0.07
"""Calls that wait, as a share of those worked on: enough that no slot is empty while a new call is on its way."""
QUEUE_CALLS: Final = 1.2
"""Calls that wait at least."""
FEW: Final = 0.4
"""Share of the calls that shall wait, below which none waits."""
MANY: Final = 1.6
"""Share of the calls that shall wait, above which too many do."""
GROWTH: Final = 2.0
"""Factor of growth until calls wait: at the end fewer wait than there are slots."""
STEP: Final = 1.1
"""Factor of growth afterwards. After `STEPS` of them in a row growth begins again: the server has more slots now."""
STEPS: Final = 3
SETTLED_S: Final = 1.0
"""Seconds after a change until a reading can tell of it: calls are begun within 0.1, readings are 0.25 old."""
STALE_S: Final = 5.0
"""Seconds after a change until a reading counts that holds less than `SEEN` of the calls in flight: it is old, or that
of one replica."""
SEEN: Final = 0.8
OTHERS: Final = 1.25
"""Requests at the server as a multiple of the calls in flight, above which some are others'."""
FAIR: Final = 0.5
"""Share of what the server works on that is this pool's, whatever others let wait."""
TOLD_S: Final = 10.0
"""Seconds for which a reading counts."""


class ToldQueue(msgspec.Struct, array_like=True):
    """State for one pool. Float fields stay floats, so that the encoded bytes are the same after decoding."""

    heard_s: float = 0.0
    """Time of the latest reading, in seconds; 0: there was none."""
    changed_s: float = 0.0
    """Time of the latest change of the number, in seconds."""
    growing: bool = True
    """True until calls wait; False while the number is held."""
    calm: int = 0
    """Steps up in a row."""
    odd_s: float = 0.0
    """Time of the first reading in a row that ends growth, or begins it again; 0: there was none. Two such readings are
    needed: new calls may wait a moment until their prompts are read, and a slot may be free for a moment."""


def is_told(told: ToldQueue, at_s: float) -> bool:
    """Return whether the latest reading is new enough to count."""
    return bool(told.heard_s) and at_s - told.heard_s < TOLD_S


def follow(
    told: ToldQueue, at_s: float, allowed: float, in_flight: int, running: int, waiting: int, binding: bool
) -> float:
    """Return the calls that may be in flight from now on, after a reading that came at `at_s`.

    `allowed`: the number so far; `in_flight`: calls in flight now; `running`, `waiting`: requests at the server;
    `binding`: True if more is wanted than is allowed.
    """
    if not is_told(told, at_s):
        told.changed_s = at_s
    told.heard_s = at_s
    if running <= 0 < waiting or not in_flight or at_s < told.changed_s + SETTLED_S:
        return allowed  # a server that works on nothing while calls wait has stalled
    if at_s < told.changed_s + STALE_S and running + waiting < SEEN * min(float(in_flight), allowed):
        return allowed
    share = waiting / (running + waiting) if waiting else 0.0
    served = in_flight * (1 - share)
    usual = max(QUEUE_CALLS, QUEUE * served)
    fair = FAIR * running if running + waiting > OTHERS * in_flight else 0.0
    many, few = in_flight * share > MANY * usual, in_flight * share < FEW * usual
    if few and not (binding and in_flight >= SEEN * allowed):
        return allowed
    if (many and told.growing) or (few and not told.growing):
        told.odd_s = told.odd_s or at_s
        if at_s < told.odd_s + SETTLED_S:
            return allowed
    told.odd_s, wanted = 0.0, allowed
    if few:
        wanted = max(allowed + 1, (GROWTH if told.growing else STEP) * allowed)
        told.calm += not told.growing
        told.growing = told.growing or told.calm >= STEPS
    else:
        told.growing, told.calm = False, 0
        if allowed < fair and binding:
            wanted = min(GROWTH * allowed, fair)
        elif many:
            wanted = max(served + usual, min(allowed, fair))
    wanted = float(max(round(wanted), 1))
    if wanted != allowed:
        told.changed_s = at_s
    return wanted


def shift(told: ToldQueue, by_s: float) -> None:
    """Continue on another clock that is `by_s` ahead."""
    for name in ("heard_s", "changed_s", "odd_s"):
        if getattr(told, name):
            setattr(told, name, getattr(told, name) + by_s)
