"""Time for which calls waited at a server before it worked on them, as their answers tell.

No server says how long a call waited, but the time to work on a call grows with its tokens and the wait does not. A
straight line through the durations of answers, over their tokens, has the time of a token as its slope and the wait as
its intercept. The slope is found anew at each number of calls in flight, since a batch works on each call the slower
the more it holds (continuous batching: Yu et al., Orca, OSDI 2022; Agrawal et al., Sarathi-Serve, OSDI 2024). A search
that compares whole durations (Brakmo and Peterson, TCP Vegas, IEEE JSAC 13(8), 1995; Gradient2 of
https://github.com/Netflix/concurrency-limits) takes this for a queue, and stops far below what such a server can do.

Answers of one length have no slope. The one known from before is then kept: `_slope` weighs it against the answers by
their errors, as the mean of a normal prior (ridge regression: Hoerl and Kennard, Technometrics 12(1), 1970).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import field

START: Final = 2
"""Calls in flight at the beginning: one in the only slot of a small server, and one that waits for it."""
PROMPT_WEIGHT: Final = 0.05
"""Time of a prompt token as a share of that of an answer token, until it was measured: a server reads a prompt many
tokens at a time, and writes an answer token by token."""
PROMPT_ERROR: Final = 0.1
"""Error that this share may have, as a standard deviation."""
CHANGE: Final = 0.4
"""Share by which the time of a token changes with the calls in flight, as a standard deviation and as a share of the
logarithm of their change: between 0, for slots of their own, and 1, for a batch that is full."""
DRIFT: Final = 0.03
"""Share by which it changes otherwise, as a standard deviation."""
IGNORANCE: Final = 1.0
"""Share by which what is known of it may be wrong, as a standard deviation, times the number of answers so far."""
NOISY: Final = 0.2
"""Standard deviation of the durations of answers of one length, as a share, from which they vary for other reasons."""
STEADY: Final = 0.2
"""Standard deviation of what seems to be a wait, as a share of it, below which it is a fixed time."""
STEADY_ANSWERS: Final = 10
"""Answers from which that is known."""
WEIGHED: Final = 0.5
"""Change of the time of a prompt token, as a share, from which sizes are counted anew while the number is held."""
SLACK: Final = 0.05
"""Share by which the time of a token may leave the bounds that the number of calls in flight gives it."""
LATE_S: Final = 0.3
"""Seconds by which a report is late at most: 0.25 between two reports, the rest for messages. A call may have begun so
much earlier than the duration of its answer says."""
LATE_ROUNDS: Final = 5.0
"""Multiple of that time from which a call is so slow that few were begun within it. Those begun with a change then
count at once."""
ALIKE: Final = 0.001
"""Variance of lengths, as a share of their squared mean, below which they tell nothing of the time of a token."""
EVEN: Final = 0.003
"""Variance of sizes, as a share of their squared mean, below which they count as one: a deviation of a twentieth."""
PROMPT_ANSWERS: Final = 12
"""Answers from which the time of a prompt token is measured."""
STALLED_S: Final = 1.0
"""Seconds without an answer, beyond `STALLED_ROUNDS`, after which the server has stalled: what waited meanwhile tells
nothing of its queue."""
STALLED_ROUNDS: Final = 1.2
"""Durations of an answer without an answer. Calls that are begun together and have one length are answered
together."""
STALLED_ANSWERS: Final = 8.0
"""Mean intervals between two answers without an answer, which few calls in flight reach by chance."""


class LengthSums(msgspec.Struct, array_like=True):
    """Fading sums over answers: s seconds, n answer tokens, m prompt tokens, and their products."""

    count: float = 0.0
    s: float = 0.0
    n: float = 0.0
    m: float = 0.0
    nn: float = 0.0
    mm: float = 0.0
    nm: float = 0.0
    sn: float = 0.0
    sm: float = 0.0
    ss: float = 0.0


class SizeSums(msgspec.Struct, array_like=True):
    """Sums over the answers since the last change: s seconds, x size in answer tokens, and their products."""

    count: float = 0.0
    s: float = 0.0
    x: float = 0.0
    xx: float = 0.0
    sx: float = 0.0
    ss: float = 0.0


class Waiting(msgspec.Struct, array_like=True):
    """Measurements of one pool. Float fields stay floats, so that the encoded bytes are the same after decoding."""

    lengths: LengthSums = field(default_factory=LengthSums)
    sizes: SizeSums = field(default_factory=SizeSums)
    prompt_weight: float = PROMPT_WEIGHT
    """Time of a prompt token as a share of that of an answer token."""
    per_token_s: float = 0.0
    """Seconds of an answer token at the last reading; 0: no answer yet."""
    fixed_s: float = 0.0
    """Seconds of a call that neither its tokens nor a queue explain: the network, a gateway, a scheduler."""
    fresh: int = 0
    """Answers to calls begun since the last change."""
    from_s: float = 0.0
    """Time from which a call must have begun to be counted, in seconds."""
    heard_s: float = 0.0
    """Time of the latest report with answers, in seconds."""
    latency_s: float = 0.0
    """Mean duration of an answer, queue included, in seconds; 0: not known."""


class WaitReading(msgspec.Struct):
    """Reading at one number of calls in flight."""

    share: float
    """Share of its time that a call waits."""
    wait_s: float
    """Seconds that a call waits."""
    usual_s: float
    """Seconds of a call of usual size, wait included."""
    size: float
    """Usual size of a call in answer tokens."""
    per_token_s: float
    """Seconds of an answer token."""
    mean_s: float
    """Mean seconds of the answers since the last change."""
    mean_size: float
    """Mean size of these answers in answer tokens."""
    share_known: float
    """Share of its time that a call waits if the time of a token is what it was before."""
    even: bool
    """True if the answers have one length, so that their durations do not tell a wait from a slower batch."""
    explained: float
    """Share of the variance of durations that sizes explain. Of answers of one length: 0 if durations vary all the
    same, and 1 otherwise."""
    steady: bool
    """True if what seems to be a wait hardly varies: then it is a fixed time, since a wait is what is left of the calls
    before."""
    gain: float = 1.0
    """Factor of throughput since the change. By Little's law it is that of the calls in flight, divided by that of the
    duration of a call (J. D. C. Little, A Proof for the Queuing Formula L = λW, Operations Research 9(3), 1961)."""


def note(waiting: Waiting, samples: Sequence[tuple[float, int]], prompts: Sequence[int]) -> None:
    """Note the shortest time of a token in answers, (seconds, answer tokens) with the prompt's tokens each, while none
    was measured."""
    if waiting.lengths.count >= PROMPT_ANSWERS:
        return
    for (seconds, output), prompt in zip(samples, prompts, strict=False):
        each_s = seconds / (output + waiting.prompt_weight * prompt + 1)
        if not waiting.per_token_s or each_s < waiting.per_token_s:
            waiting.per_token_s = each_s


def take(
    waiting: Waiting, at_s: float, in_flight: float, samples: Sequence[tuple[float, int]], prompts: Sequence[int]
) -> bool:
    """Take in the answers of a report; return False if none of them was begun since the last change."""
    note(waiting, samples, prompts)
    silent_s = at_s - waiting.heard_s
    if waiting.latency_s and silent_s > STALLED_S + waiting.latency_s * max(
        STALLED_ROUNDS, STALLED_ANSWERS / in_flight
    ):
        begin_anew(waiting, at_s)
    waiting.heard_s = at_s
    weight, from_s = waiting.prompt_weight, waiting.from_s
    c = s_ = n_ = m_ = nn = mm = nm = sn = sm = ss = x_ = xx = sx = 0.0
    for (s, n), m in zip(samples, prompts, strict=False):
        if at_s - s < from_s:
            continue
        x = n + weight * m + 1
        c, s_, n_, m_, x_ = c + 1, s_ + s, n_ + n, m_ + m, x_ + x
        nn, mm, nm, sn, sm = nn + n * n, mm + m * m, nm + n * m, sn + s * n, sm + s * m
        ss, xx, sx = ss + s * s, xx + x * x, sx + s * x
    if not c:
        return False
    _fade(waiting.lengths, math.exp(-c / min(max(2 * in_flight, 48.0), 512.0)), c, s_, n_, m_, nn, mm, nm, sn, sm, ss)
    _fade(waiting.sizes, math.exp(-c / min(max(in_flight, 12.0), 256.0)), c, s_, x_, xx, sx, ss)
    waiting.fresh += int(c)
    waiting.latency_s = waiting.sizes.s / waiting.sizes.count
    return True


def _fade(sums: LengthSums | SizeSums, keep: float, *more: float) -> None:
    for name, value in zip(sums.__struct_fields__, more, strict=True):
        setattr(sums, name, keep * getattr(sums, name) + value)


def begin_anew(waiting: Waiting, at_s: float) -> None:
    """Count from now on only answers to calls that are begun from now on."""
    late_s = LATE_S if waiting.latency_s < LATE_ROUNDS * LATE_S else 0.0
    waiting.from_s, waiting.fresh, waiting.sizes = at_s + late_s, 0, SizeSums()


def read(waiting: Waiting, in_flight: float, before: float) -> WaitReading:
    """Return what the answers since the last change tell. `before`: calls in flight before it; 0: there was none."""
    sums, lengths = waiting.sizes, waiting.lengths
    s, x = sums.s / sums.count, sums.x / sums.count
    per_token_s, even = _slope(waiting, s, x, DRIFT + CHANGE * abs(math.log(in_flight / (before or START))))
    if before:  # a batch works the slower on each call the more it holds, and on all of them no slower than before
        ends, slack = (waiting.per_token_s, waiting.per_token_s * in_flight / before), SLACK + _ignorance(waiting)
        per_token_s = min(max(per_token_s, (1 - slack) * min(ends)), (1 + slack) * max(ends))
    besides_s = max(0.0, s - per_token_s * x)
    waiting.fixed_s = min(waiting.fixed_s, (waiting.fixed_s + besides_s) / 2)  # it cannot be more
    wait_s = max(0.0, besides_s - waiting.fixed_s)
    # Short calls are answered first after a change, so the size is that of more answers than those since then.
    size = (lengths.n + waiting.prompt_weight * lengths.m) / lengths.count + 1
    usual_s = s + per_token_s * (size - x)
    share_known = max(0.0, 1 - (waiting.per_token_s * x + waiting.fixed_s) / s)
    explained, steady = _spread(waiting, wait_s)
    if even:
        explained, steady = 0.0 if sums.ss / sums.count - s * s > (NOISY * s) ** 2 else 1.0, False
    return WaitReading(
        wait_s / usual_s, wait_s, usual_s, size, per_token_s, s, x, share_known, even, explained, steady,
    )  # fmt: skip


def _spread(waiting: Waiting, wait_s: float) -> tuple[float, bool]:
    """Return the share of the variance of durations that sizes explain (coefficient of determination), and whether the
    rest is too small for a wait."""
    c, weight = waiting.lengths, waiting.prompt_weight
    s, n, m = c.s / c.count, c.n / c.count, c.m / c.count
    nn, mm, nm = c.nn / c.count - n * n, c.mm / c.count - m * m, c.nm / c.count - n * m
    var, all_ = nn + 2 * weight * nm + weight * weight * mm, c.ss / c.count - s * s
    cov = c.sn / c.count - s * n + weight * (c.sm / c.count - s * m)
    share = cov * cov / (var * all_) if cov > 0 and var > 0 and all_ > 0 else 0.0
    return share, c.count >= STEADY_ANSWERS and (1 - share) * all_ < (STEADY * wait_s) ** 2


def shortened(now: WaitReading, before_s: float, before_size: float) -> float:
    """Return the factor by which calls of usual size are shorter now than before: below 1 if they are longer.

    `before_s`, `before_size`: mean duration and size of the answers before. Both are brought to the usual size by the
    time of a token that is known now.
    """
    least_s = 0.05 * before_s
    return max(before_s + now.per_token_s * (now.size - before_size), least_s) / max(now.usual_s, least_s)


def _slope(waiting: Waiting, s: float, x: float, change: float) -> tuple[float, bool]:
    """Return the seconds of an answer token, and whether all answers have one length. `change`: standard deviation of
    its change, as a share."""
    sums, known = waiting.sizes, waiting.per_token_s
    var = max(sums.xx / sums.count - x * x, 0.0)
    cov = sums.sx / sums.count - s * x
    off = max(sums.ss / sums.count - s * s - 2 * known * cov + known * known * var, 0.0)
    change += _ignorance(waiting)
    prior = (off / (change * known) ** 2 + ALIKE * x * x) / sums.count
    return max((cov + prior * known) / (var + prior), 0.0), var <= EVEN * x * x


def weigh(waiting: Waiting) -> bool:
    """Take in what is known of a prompt token; return True if it changed the sizes of answers by much."""
    before, weight = waiting.prompt_weight, _prompt_weight(waiting)
    if abs(weight - before) < WEIGHED * before:
        return False
    settle(waiting, waiting.per_token_s)
    return True


def _ignorance(waiting: Waiting) -> float:
    """Return the share by which the known time of a token may be wrong after few answers, as a standard deviation."""
    return max(0.0, IGNORANCE / waiting.lengths.count - 0.1)


def settle(waiting: Waiting, per_token_s: float) -> float:
    """Keep a time of a token, and what is known now of a prompt token; return the factor by which sizes change."""
    weight, lengths = _prompt_weight(waiting), waiting.lengths
    n, m = lengths.n / lengths.count + 1, lengths.m / lengths.count
    factor = (n + weight * m) / (n + waiting.prompt_weight * m)
    waiting.per_token_s, waiting.prompt_weight = per_token_s / factor, weight
    return factor


def _prompt_weight(waiting: Waiting) -> float:
    """Return the time of a prompt token as a share of that of an answer token, by least squares over both lengths. The
    larger its error, the more of what was known stays."""
    c, known = waiting.lengths, waiting.prompt_weight
    if c.count < PROMPT_ANSWERS:
        return known
    s, n, m = c.s / c.count, c.n / c.count, c.m / c.count
    nn, mm, ss = c.nn / c.count - n * n, c.mm / c.count - m * m, c.ss / c.count - s * s
    nm, sn, sm = c.nm / c.count - n * m, c.sn / c.count - s * n, c.sm / c.count - s * m
    det = nn * mm - nm * nm
    if nn <= ALIKE * n * n or mm <= ALIKE * m * m or det < 0.05 * nn * mm:
        return known
    per_n, per_m = (sn * mm - sm * nm) / det, (sm * nn - sn * nm) / det
    if per_n <= 0:
        return known
    off = max(ss - per_n * sn - per_m * sm, 0.0)
    error = off * nn / (det * c.count * per_n * per_n)
    trust = PROMPT_ERROR**2 / (PROMPT_ERROR**2 + 4 * error)
    return known + trust * (min(max(per_m / per_n, 0.0), 1.0) - known)
