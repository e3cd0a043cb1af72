"""Number of calls in flight at a server that tells how many requests it works on, and how many wait there.

vLLM, SGLang, llama.cpp and TGI tell both in their metrics. The share that waits is then known, and need not be found in
durations (`queueing`): the number grows while nearly nothing waits, and then is held at what is worked on, plus the
share `QUEUE` that waits for the next free slot.

Only the share is taken from the server, never its counts: its metrics may be those of one of several replicas behind
one address. Where others ask it as well and let calls wait without bound, a job that gave way would starve: it keeps,
and grows to, half as many calls as the server works on.

Where a KV cache is full and prompts differ, a long one at the head of the queue keeps the others waiting although slots
are free, and a moment later nothing waits: single readings tell nothing then. A step up that is followed by a cut, or a
cut by a step up, doubles the time over which readings are averaged (`ToldQueue.window_s`); steps up in a row, and a
number that stays, halve it.

Growth waits until a reading can hold the calls of the last step, since some servers count every few seconds: SGLang by
default each 40 steps of its decoding (`--decode-log-interval`).
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

QUEUE: Final = 0.07
"""Calls that wait, as a share of those worked on: enough that no slot is empty while a new call is on its way."""
QUEUE_VARIED: Final = 0.12
"""The same where this number varies by itself, as at a full KV cache, so that nothing waits at times."""
QUEUE_CALLS: Final = 1.2
"""Calls that wait at least."""
FEW: Final = 0.4
"""Share of the calls that shall wait, below which none waits."""
MANY: Final = 1.6
"""Share of the calls that shall wait, above which too many do."""
MANY_VARIED: Final = 1.25
"""The same of a mean over the window."""
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
WINDOW_S: Final = 2.0
"""Seconds over which readings are averaged after a step up and a cut; 0 before. Each further turn doubles them."""
WINDOW_MAX_S: Final = 16.0
"""Seconds at most: some calls' time, and steps up in a row still come to twice the slots within a minute."""
RESTS: Final = 6.0
"""Windows without a change after which the window is halved: the waiting does not vary by itself."""
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
    window_s: float = 0.0
    """Seconds over which readings are averaged while the number is held; 0: each counts by itself."""
    share: float = 0.0
    """Mean share that waited, over the window."""
    share_s: float = 0.0
    """Time since when it is taken, or the window has its length, in seconds; 0: no reading since the latest change."""
    turn: int = 0
    """Direction of the latest change while the number is held: 1, -1, or 0 at the beginning."""


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
    heard_s, told.heard_s = told.heard_s, at_s
    if running <= 0 < waiting or not in_flight or at_s < told.changed_s + SETTLED_S:
        return allowed  # a server that works on nothing while calls wait has stalled
    if at_s < told.changed_s + STALE_S and running + waiting < SEEN * min(float(in_flight), allowed):
        return allowed
    share = waiting / (running + waiting) if waiting else 0.0
    since_s = at_s - max(heard_s, told.changed_s)
    if told.window_s and not told.growing:
        share = _mean_share(told, at_s, since_s, share)
        if at_s < told.share_s + told.window_s:
            return allowed
    served = in_flight * (1 - share)
    usual = max(QUEUE_CALLS, (QUEUE_VARIED if told.window_s else QUEUE) * served)
    fair = FAIR * running if running + waiting > OTHERS * in_flight else 0.0
    most = MANY_VARIED if told.window_s else MANY
    many, few = in_flight * share > most * usual, in_flight * share < FEW * usual
    if few and not (binding and in_flight >= SEEN * allowed):
        return allowed
    if (many and told.growing) or (few and not told.growing):
        told.odd_s = told.odd_s or at_s
        if at_s < told.odd_s + SETTLED_S:
            return allowed
    told.odd_s, wanted = 0.0, allowed
    if few:
        wanted = max(allowed + 1, (GROWTH if told.growing else STEP) * allowed)
        if not told.growing:
            told.calm += 1
            _turn(told, 1)
        told.growing = told.growing or (told.calm >= STEPS and not told.window_s)
    else:
        if allowed < fair and binding:
            wanted = min(GROWTH * allowed, fair)
        elif many:
            wanted = max(served + usual, min(allowed, fair))
        if wanted < allowed:
            _turn(told, -1)
        told.growing, told.calm = False, 0
    wanted = float(max(round(wanted), 1))
    if wanted != allowed:
        told.changed_s, told.share_s = at_s, 0.0
    return wanted


def _mean_share(told: ToldQueue, at_s: float, since_s: float, share: float) -> float:
    """Return the mean share that waits, with a reading `since_s` after the one before."""
    if not told.share_s:
        told.share, told.share_s = share, at_s
    told.share += (1 - math.exp(-since_s / told.window_s)) * (share - told.share)
    if at_s >= told.share_s + RESTS * told.window_s:
        _shorten(told)
        told.share_s, told.turn = at_s, 0
    return told.share


def _shorten(told: ToldQueue) -> None:
    told.window_s = told.window_s / 2 if told.window_s > WINDOW_S else 0.0


def _turn(told: ToldQueue, direction: int) -> None:
    """Take in a change of the number while it is held: readings are averaged over longer times where it turned. The cut
    that ends growth is no turn."""
    if told.growing:
        direction = 0
    elif told.turn == -direction:
        told.window_s = min(max(2 * told.window_s, WINDOW_S), WINDOW_MAX_S)
    elif told.turn == direction == 1:
        _shorten(told)
    told.turn = direction


def shift(told: ToldQueue, by_s: float) -> None:
    """Continue on another clock that is `by_s` ahead."""
    for name in ("heard_s", "changed_s", "odd_s", "share_s"):
        if getattr(told, name):
            setattr(told, name, getattr(told, name) + by_s)
