"""Time for which calls waited at a server before it worked on them, as their answers tell.

No server says how long a call waited, but the time to work on a call grows with its tokens and the wait does not. A
straight line through the durations of answers, over their tokens, has the time of a token as its slope and the wait as
its intercept. The slope is found anew at each number of calls in flight, since a batch works on each call the slower
the more it holds (continuous batching: Yu et al., Orca, OSDI 2022; Agrawal et al., Sarathi-Serve, OSDI 2024). A search
that compares whole durations (Brakmo and Peterson, TCP Vegas, IEEE JSAC 13(8), 1995; Gradient2 of
https://github.com/Netflix/concurrency-limits) takes this for a queue, and stops far below what such a server can do.

Prompt and answer have a slope each: what a prompt token takes differs a hundredfold between servers. Answers of one
length have no slope. What was known from before is then kept: `_line` weighs it against the answers by their errors, as
the mean of a normal prior (ridge regression: Hoerl and Kennard, Technometrics 12(1), 1970), and tells its own error.

Answers that are read early are those that waited least (censoring). So where calls wait, their answers teach little of
the time of a token, and the usual size of a call is that of all answers, also those begun before a change.
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
PROMPT_ERROR: Final = 0.2
"""Error that this share may have, as a standard deviation, until it was measured. A GPU reads a prompt some hundred
times as fast as it writes an answer, llama.cpp on two cores three times (110 to 150 and 45 tokens a second, measured
with SmolLM2-135M)."""
PROMPT_ERROR_MIN: Final = 0.002
PROMPT_WEIGHT_MAX: Final = 1.0
NOISE: Final = 0.03
"""Standard deviation of durations that neither tokens nor a wait explain, as a share, at least."""
KNOWN_WEIGHT: Final = 2.0
"""Answers for which the variance of durations counts that was expected by what was known."""
WORK_ANSWERS: Final = 256.0
"""Answers over which what the work of calls took fades."""
APART: Final = 2.5
"""Factor by which the time of a token may be another than was known, where the change of the calls in flight is not
known."""
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
STEADY_SIZES: Final = 0.5
"""The same as a share of that of sizes."""
STEADY_ANSWERS: Final = 10
"""Answers from which that is known."""
SLACK: Final = 0.05
"""Share by which the time of a token may leave the bounds that the number of calls in flight gives it."""
LATE_S: Final = 0.3
"""Seconds by which a report is late at most: 0.25 between two reports, the rest for messages. A call may have begun so
much earlier than the duration of its answer says."""
LATE_ROUNDS: Final = 5.0
"""Multiple of that time from which a call is so slow that few were begun within it. Those begun with a change then
count at once."""
AROUND_ANSWERS: Final = 256.0
"""Answers over which what they tell of time and tokens fades."""
CALM_ANSWERS: Final = 6.0
"""Answers of which none waited, less one for each number of calls in flight, from which their variance is known."""
TINY: Final = 1e-9
"""Variance of prompts that have one length, which divides."""
LATE_CALLS: Final = 48.0
"""Calls in flight from which those begun with a change never count: the first of them find the free slots, and the
others, which wait, are answered last. Those begun later wait as long as all that follow."""
ALIKE: Final = 0.001
"""Variance of lengths, as a share of their squared mean, below which they tell nothing of the time of a token."""
EVEN: Final = 0.003
"""Variance of sizes, as a share of their squared mean, below which they count as one: a deviation of a twentieth."""
WIDE: Final = 0.4
"""Standard deviation of prompts, times `PROMPT_WEIGHT` and as a share of the mean answer, from which that guess decides
what the time of a token seems to be. One prompt in ten eight times as long gives .55, prompts that vary by .4 give
.1."""
WIDE_EXPLAINED: Final = 0.9
"""Share of the variance of durations that lengths explain, from which both times are then taken from the fit."""
WIDE_ANSWERS: Final = 6.0
"""Answers from which that fit counts."""
WIDE_ERROR: Final = 0.02
"""Error of the prompt's weight after that, as a standard deviation."""
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
    """Sums of earlier releases, which states of theirs hold."""

    count: float = 0.0
    s: float = 0.0
    x: float = 0.0
    xx: float = 0.0
    sx: float = 0.0
    ss: float = 0.0


class Moments(msgspec.Struct):
    """Means and covariances of answers: s seconds, x size in answer tokens, m prompt tokens."""

    count: float
    s: float
    x: float
    m: float
    xx: float
    mm: float
    xm: float
    xs: float
    ms: float
    ss: float


class Line(msgspec.Struct):
    """Durations as a straight line over sizes and prompts."""

    per_token_s: float
    """Seconds of an answer token."""
    prompt_s: float
    """Seconds of a prompt token, beyond those that its weight gives it."""
    besides_s: float
    """Seconds of a call that its tokens do not explain."""
    error_s: float
    """Standard deviation of that."""
    noise_s: float
    """Standard deviation of durations about the line."""


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
    level: LengthSums = field(default_factory=LengthSums)
    """Sums over the answers since the last change."""
    work: LengthSums = field(default_factory=LengthSums)
    """Sums over the answers before it, in answer tokens and without the wait: what their work took."""
    prompt_error: float = PROMPT_ERROR
    """Error of the prompt's weight, as a standard deviation."""
    around: LengthSums = field(default_factory=LengthSums)
    """Sums over the answers before the last change, of what each differs by from the mean at its number of calls in
    flight. Seconds are shares of that mean."""
    calm: LengthSums = field(default_factory=LengthSums)
    """The same over answers of which none waited."""
    burst: int = 0
    """Answers to calls begun with the last change, where these do not count."""


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
    """Share of the variance of durations that sizes explain, over all answers so far, whatever number was in flight. Of
    answers of one length: 0 if durations vary all the same, and 1 otherwise."""
    compared: float
    """Answers that tell this share, less one for each number of calls in flight."""
    varied: float
    """Standard deviation of durations that sizes do not explain, as a share of them, over all these answers."""
    besides: float
    """Share of durations that is not in proportion to lengths, over all these answers."""
    besides_error: float
    """Standard error of that."""
    varied_calm: float
    """The same over those of which none waited; 0: not known."""
    steady: bool
    """True if what seems to be a wait hardly varies: then it is a fixed time, since a wait is what is left of the calls
    before."""
    gain: float = 1.0
    """Factor of throughput since the change. By Little's law it is that of the calls in flight, divided by that of the
    duration of a call (J. D. C. Little, A Proof for the Queuing Formula L = λW, Operations Research 9(3), 1961)."""
    error: float = 0.0
    """Standard deviation of the share."""
    noise: float = 0.0
    """Standard deviation of durations about those of their tokens, as a share."""


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
    waiting: Waiting, at_s: float, in_flight: float, samples: Sequence[tuple[float, int]], prompts: Sequence[int],
    fades: float = 0.0, without: tuple[float, float] = (math.inf, math.inf),
) -> bool:  # fmt: skip
    """Take in the answers of a report; return False if none of them was begun since the last change.

    `fades`: answers over which those since the last change fade at least; 0: the usual ones. `without`: times from
    which and until which calls begun count as no answers of this number in flight.
    """
    note(waiting, samples, prompts)
    silent_s = at_s - waiting.heard_s
    if waiting.latency_s and silent_s > STALLED_S + waiting.latency_s * max(
        STALLED_ROUNDS, STALLED_ANSWERS / in_flight
    ):
        begin_anew(waiting, at_s, in_flight)
    waiting.heard_s = at_s
    from_s, old, new = waiting.from_s, LengthSums(), LengthSums()
    for (seconds, output), prompt in zip(samples, prompts, strict=False):
        begun_s = at_s - seconds
        counts = from_s <= begun_s and not without[0] <= begun_s < without[1]
        _add(new if counts else old, seconds, output, prompt)
        waiting.burst += from_s - LATE_S <= begun_s < from_s
    many = min(max(2 * in_flight, 48.0), 512.0)
    _fade(waiting.lengths, many, old)
    if not new.count:
        return False
    _fade(waiting.lengths, many, new)
    _fade(waiting.level, min(max(in_flight, fades, 12.0 if in_flight > START else 48.0), 256.0), new)
    waiting.fresh += int(new.count)
    waiting.latency_s = waiting.level.s / waiting.level.count
    return True


def _add(sums: LengthSums, s: float, n: int, m: int) -> None:
    sums.count, sums.s, sums.n, sums.m = sums.count + 1, sums.s + s, sums.n + n, sums.m + m
    sums.nn, sums.mm, sums.nm = sums.nn + n * n, sums.mm + m * m, sums.nm + n * m
    sums.sn, sums.sm, sums.ss = sums.sn + s * n, sums.sm + s * m, sums.ss + s * s


def _fade(sums: LengthSums, answers: float, more: LengthSums) -> None:
    """Add sums to those that fade over so many answers."""
    keep = math.exp(-more.count / answers)
    for name in sums.__struct_fields__:
        setattr(sums, name, keep * getattr(sums, name) + getattr(more, name))


def begin_anew(waiting: Waiting, at_s: float, in_flight: float) -> None:
    """Count from now on only answers to calls that are begun from now on, of which `in_flight` may be in flight."""
    quick = waiting.latency_s < LATE_ROUNDS * LATE_S
    late_s = LATE_S if quick or (in_flight >= LATE_CALLS and not _alike(waiting)) else 0.0
    if waiting.level.count > 1:
        _fade(waiting.around, AROUND_ANSWERS, _differences(waiting, waiting.level))
    waiting.from_s, waiting.fresh, waiting.level, waiting.burst = at_s + late_s, 0, LengthSums(), 0


def _alike(waiting: Waiting) -> bool:
    """Return True if all calls have one size: then those that are begun together are answered together."""
    now = _moments(waiting.lengths, waiting.prompt_weight) if waiting.lengths.count else None
    return now is not None and now.xx <= EVEN * now.x * now.x


def read(waiting: Waiting, in_flight: float, before: float) -> WaitReading:
    """Return what the answers since the last change tell. `before`: calls in flight before it; 0: there was none."""
    _measure_wide_prompts(waiting)
    lengths, known_s = waiting.lengths, waiting.per_token_s
    now = _moments(waiting.level, waiting.prompt_weight)
    ends = (0.0, math.inf)
    if in_flight > START:
        ends = (known_s / APART, known_s * APART)
    if before:  # a batch works the slower on each call the more it holds, and on all of them no slower than before
        slack, least, most = SLACK + _ignorance(waiting), min(1.0, in_flight / before), max(1.0, in_flight / before)
        ends = ((1 - slack) * known_s * least, (1 + slack) * known_s * most)
    change = DRIFT + CHANGE * abs(math.log(in_flight / (before or START)))
    line = _line(now, known_s, change + _ignorance(waiting), waiting.prompt_weight, waiting.prompt_error, ends)
    s, x, even = now.s, now.x, now.xx <= EVEN * now.x * now.x
    besides_s = max(0.0, line.besides_s)
    waiting.fixed_s = min(waiting.fixed_s, (waiting.fixed_s + besides_s) / 2)  # it cannot be more
    wait_s = max(0.0, besides_s - waiting.fixed_s)
    # Short calls are answered first after a change, so the size is that of more answers than those since then.
    size = _size(lengths, waiting.prompt_weight)
    usual_s = s + line.per_token_s * (size - x)
    share_known = max(0.0, 1 - (known_s * x + waiting.fixed_s) / s)
    around = _all_differences(waiting)
    fit = _fit(around, waiting.lengths)
    explained = fit.explained
    if _alike(waiting):
        explained = 0.0 if around.ss > NOISY**2 * around.count else 1.0
    steady = not even and _is_steady(waiting, wait_s)
    besides, besides_error = _besides(waiting, around, fit)
    quiet = _fit(waiting.calm, lengths).varied if waiting.calm.count >= CALM_ANSWERS else 0.0
    return WaitReading(
        wait_s / usual_s, wait_s, usual_s, size, line.per_token_s, s, x, share_known, even, explained, around.count,
        fit.varied, besides, besides_error, quiet, steady, error=line.error_s / usual_s, noise=line.noise_s / s,
    )  # fmt: skip


def _measure_wide_prompts(waiting: Waiting) -> None:
    """Take the times of both tokens from the fit, where prompts vary so much that the guess of their weight decides.

    A prompt of 8,000 tokens counts as 400 of an answer by that guess. The quickest answer by tokens then gives a third
    of the time of a token, and the rest of each call seems to be a wait.
    """
    lengths, level = waiting.lengths, waiting.level
    if waiting.prompt_error < PROMPT_ERROR or level.count <= 1:
        return
    n, m = lengths.n / lengths.count, lengths.m / lengths.count
    around = _all_differences(waiting)
    if around.nn <= EVEN * (n + 1) ** 2 * around.count:
        return  # answers have one length, which tells nothing of the time of their tokens
    if around.count < WIDE_ANSWERS or PROMPT_WEIGHT**2 * (lengths.mm / lengths.count - m * m) <= (WIDE * n) ** 2:
        return
    fit = _fit(around, lengths)
    if fit.explained < WIDE_EXPLAINED or fit.per_n <= 0:
        return
    weight = waiting.prompt_weight = min(max(fit.per_m / fit.per_n, 0.0), PROMPT_WEIGHT_MAX)
    waiting.prompt_error = WIDE_ERROR
    waiting.per_token_s = fit.per_n * level.s / level.count * _size(lengths, weight) / _size(level, weight)


def _moments(sums: LengthSums, weight: float) -> Moments:
    """Return means and covariances, with a prompt token weighed so."""
    c = sums.count
    s, n, m = sums.s / c, sums.n / c, sums.m / c
    nn, mm, nm = sums.nn / c - n * n, sums.mm / c - m * m, sums.nm / c - n * m
    sn, sm = sums.sn / c - s * n, sums.sm / c - s * m
    return Moments(
        c, s, n + weight * m + 1, m, max(nn + 2 * weight * nm + weight * weight * mm, 0.0), max(mm, 0.0),
        nm + weight * mm, sn + weight * sm, sm, max(sums.ss / c - s * s, 0.0),
    )  # fmt: skip


def _line(
    now: Moments, known_s: float, change: float, weight: float, weight_error: float, ends: tuple[float, float]
) -> Line:
    """Return the line through durations over sizes and prompts that is most likely by what was known.

    Known are the time of an answer token, with a standard deviation of the share `change`, and the weight of a prompt
    token with one of `weight_error`. The variance of durations about the line counts twice by what was known, and once
    by each answer.
    """
    n, sd, sd_prompt = now.count, change * known_s, weight_error * known_s
    besides = now.ss - 2 * known_s * now.xs + known_s * known_s * now.xx
    error = max(besides - (now.ms - known_s * now.xm) ** 2 / (now.mm + TINY), (NOISE * now.s) ** 2)
    off = error
    for _ in range(2):
        xx = now.xx + off / (n * sd * sd) + ALIKE * now.x * now.x / n
        mm = now.mm + off / (n * sd_prompt * sd_prompt) + ALIKE * now.m * now.m / n + TINY
        det = xx * mm - now.xm * now.xm
        right, right_prompt = now.xs + (xx - now.xx) * known_s, now.ms
        per_token_s = (right * mm - right_prompt * now.xm) / det
        per_token_s = min(max(per_token_s, ends[0]), ends[1])
        prompt_s = (right_prompt - per_token_s * now.xm) / mm
        prompt_s = min(max(prompt_s, -weight * per_token_s), per_token_s * (PROMPT_WEIGHT_MAX - weight))
        left = now.ss - 2 * (per_token_s * now.xs + prompt_s * now.ms)
        left += per_token_s**2 * now.xx + prompt_s**2 * now.mm + 2 * per_token_s * prompt_s * now.xm
        off = max((n * left + KNOWN_WEIGHT * error) / (n + KNOWN_WEIGHT), (NOISE * now.s) ** 2)
    var = 1 + (now.x**2 * mm + now.m**2 * xx - 2 * now.x * now.m * now.xm) / det
    besides_s = now.s - per_token_s * now.x - prompt_s * now.m
    return Line(per_token_s, prompt_s, besides_s, math.sqrt(off / n * var), math.sqrt(max(left, 0.0)))


def _differences(waiting: Waiting, sums: LengthSums) -> LengthSums:
    """Return the sums of what answers differ by from their mean, with seconds as shares of those of usual lengths."""
    c, now = sums.count, _moments(sums, 0.0)
    nm = sums.nm / c - (now.x - 1) * now.m
    s = max(now.s * _size(waiting.lengths, waiting.prompt_weight) / _size(sums, waiting.prompt_weight), TINY)
    found = LengthSums(max(c - 1, 0.0), nn=c * now.xx, mm=c * now.mm, nm=c * nm)
    found.sn, found.sm, found.ss = c * now.xs / s, c * now.ms / s, c * now.ss / s**2
    return found


def _all_differences(waiting: Waiting) -> LengthSums:
    """Return these sums over the answers before the last change and since."""
    found = msgspec.structs.replace(waiting.around)
    if waiting.level.count > 1:
        _fade(found, AROUND_ANSWERS, _differences(waiting, waiting.level))
    return found


class Fit(msgspec.Struct):
    """Differences of durations, as shares of their mean, over those of both lengths."""

    per_n: float
    """Share of an answer token."""
    per_m: float
    """Share of a prompt token."""
    varied: float
    """Standard deviation of what lengths do not explain."""
    explained: float
    """Share of the variance that they explain (coefficient of determination, adjusted for their number)."""


def _fit(around: LengthSums, lengths: LengthSums) -> Fit:
    """Return what both lengths explain of durations."""
    c, n, m = around.count, lengths.n / lengths.count, lengths.m / lengths.count
    nn, mm = around.nn + ALIKE * (n + 1) ** 2 * c, around.mm + (ALIKE * m * m + TINY) * c
    det = nn * mm - around.nm**2
    if c < 1 or det <= 0 or around.ss <= 0:
        return Fit(0.0, 0.0, math.sqrt(max(around.ss, 0.0) / max(c, 1.0)), 0.0)
    per_n, per_m = (around.sn * mm - around.sm * around.nm) / det, (around.sm * nn - around.sn * around.nm) / det
    left = around.ss
    if per_n > 0 or per_m > 0:
        left -= max(per_n * around.sn + per_m * around.sm, 0.0)
    left = max(left, 0.0) * c / max(c - 2, 1.0)
    return Fit(per_n, per_m, math.sqrt(left / c), 1 - left / around.ss)


def _besides(waiting: Waiting, around: LengthSums, fit: Fit) -> tuple[float, float]:
    """Return the share of durations that is not in proportion to lengths, and its standard error."""
    n, m = waiting.lengths.n / waiting.lengths.count, waiting.lengths.m / waiting.lengths.count
    weight = waiting.prompt_weight
    xx = max(around.nn + 2 * weight * around.nm + weight**2 * around.mm, TINY)
    return 1 - fit.per_n * n - fit.per_m * m, fit.varied * (n + weight * m + 1) / math.sqrt(xx)


def _is_steady(waiting: Waiting, wait_s: float) -> bool:
    """Return True if what tokens do not explain varies too little for a wait: one for a single call varies as they do.
    """
    level = waiting.level
    if level.count < STEADY_ANSWERS:
        return False
    now = _moments(level, waiting.prompt_weight)
    varied = _fit(_differences(waiting, level), level).varied
    least = min(STEADY**2, STEADY_SIZES**2 * now.xx / now.x**2)
    return (varied * now.s) ** 2 < least * wait_s**2


def mean(waiting: Waiting) -> tuple[float, float]:
    """Return the mean duration of the answers since the last change, brought to the usual lengths as far as lengths
    explain durations, and its standard error as a share of it."""
    level, lengths = waiting.level, waiting.lengths
    c, fit = level.count, _fit(_all_differences(waiting), lengths)
    more_n, more_m = level.n / c - lengths.n / lengths.count, level.m / c - lengths.m / lengths.count
    share = max(fit.explained, 0.0) * (fit.per_n * more_n + fit.per_m * more_m)
    return level.s / c * (1 - min(max(share, -0.5), 0.5)), max(fit.varied, NOISE) / math.sqrt(c)


def calm(waiting: Waiting) -> None:
    """Keep the answers since the last change as some of which none waited."""
    if waiting.level.count > 1:
        _fade(waiting.calm, AROUND_ANSWERS, _differences(waiting, waiting.level))


def shortened(now: WaitReading, before_s: float, before_size: float) -> float:
    """Return the factor by which calls of usual size are shorter now than before: below 1 if they are longer.

    `before_s`, `before_size`: mean duration and size of the answers before. Both are brought to the usual size by the
    time of a token that is known now.
    """
    least_s = 0.05 * before_s
    return max(before_s + now.per_token_s * (now.size - before_size), least_s) / max(now.usual_s, least_s)


def _ignorance(waiting: Waiting) -> float:
    """Return the share by which the known time of a token may be wrong after few answers, as a standard deviation."""
    return max(0.0, IGNORANCE / waiting.lengths.count - 0.1)


def settle(waiting: Waiting, per_token_s: float, wait_s: float) -> float:
    """Keep a time of a token, and what the answers since the last change tell of a prompt token, each of which waited
    `wait_s`; return the factor by which sizes change."""
    waiting.work = _together(waiting, per_token_s, wait_s)
    weight, waiting.prompt_error = _prompt_weight(waiting, waiting.work)
    level, lengths, before = waiting.level, waiting.lengths, waiting.prompt_weight
    waiting.prompt_weight = weight
    work_s = level.s / level.count - wait_s - waiting.fixed_s
    waiting.per_token_s = per_token_s if weight == before or work_s <= 0 else work_s / _size(level, weight)
    return _size(lengths, weight) / _size(lengths, before)


def _size(sums: LengthSums, weight: float) -> float:
    """Return the mean size in answer tokens."""
    return (sums.n + weight * sums.m) / sums.count + 1


def _together(waiting: Waiting, per_token_s: float, wait_s: float) -> LengthSums:
    """Return the sums over earlier answers and those since the last change, without their wait and in answer tokens."""
    new, besides_s = waiting.level, wait_s + waiting.fixed_s
    found = LengthSums(new.count, (new.s - besides_s * new.count) / per_token_s, new.n, new.m, new.nn, new.mm, new.nm)
    found.sn, found.sm = (new.sn - besides_s * new.n) / per_token_s, (new.sm - besides_s * new.m) / per_token_s
    found.ss = (new.ss - 2 * besides_s * new.s + besides_s * besides_s * new.count) / per_token_s**2
    sums = msgspec.structs.replace(waiting.work)
    _fade(sums, WORK_ANSWERS, found)
    return sums


def _prompt_weight(waiting: Waiting, c: LengthSums) -> tuple[float, float]:
    """Return the time of a prompt token as a share of that of an answer token, and its error as a standard deviation.

    By least squares over both lengths: work takes no time where there is neither. The larger the error, the more of
    what is usual stays.
    """
    if c.count < PROMPT_ANSWERS:
        return waiting.prompt_weight, waiting.prompt_error
    det = c.nn * c.mm - c.nm * c.nm
    per_n, per_m = (c.sn * c.mm - c.sm * c.nm) / (det or 1.0), (c.sm * c.nn - c.sn * c.nm) / (det or 1.0)
    if det <= ALIKE * c.nn * c.mm or per_n <= 0:
        return waiting.prompt_weight, waiting.prompt_error
    off = max(c.ss - per_n * c.sn - per_m * c.sm, NOISE**2 * c.ss) / (c.count - 2)
    error = off * c.nn / (det * per_n * per_n)
    trust = PROMPT_ERROR**2 / (PROMPT_ERROR**2 + error)
    found = min(max(per_m / per_n, 0.0), PROMPT_WEIGHT_MAX)
    return PROMPT_WEIGHT + trust * (found - PROMPT_WEIGHT), max(math.sqrt(1 - trust) * PROMPT_ERROR, PROMPT_ERROR_MIN)
