"""Search for the number of calls that a server works on at once, where it queues the others.

A server of the user's own (vLLM, SGLang, llama.cpp, Ollama) tells no limit and refuses nothing: a call beyond its slots
waits there, without bound. Calls that wait gain nothing, take longer than their timeouts, and come before those of
others. So as many are held in flight as the server works on, and a few that wait for the next free slot: `QUEUE`.
How long calls waited is known from their answers (`waiting`); with it the number of those that wait is known, by
Little's law.

**Growth.** From `START` on the number grows by `GROWTH` as long as nearly nothing waits, as soon as answers of the last
step are in. At the end no more wait than there are slots. Of many calls only those count that were begun after the
step: they stand behind all that wait, and two of them tell it. Those that wait are answered too late to tell: where no
answer has come when it should have, the step is taken back until one comes. If calls waited, the queue has begun to
empty by then, and if the batch is only slower, few calls have left it. Where none comes the step is forgotten.

**Hold.** At the end of growth the number becomes what is worked on, plus those that shall wait. It is corrected when
too many wait, and grows again, in three steps, when none does (the standing queue of RFC 8289, CoDel: bursts are no
queue). TCP Vegas holds a few packets in its queue in the same way.

**Trials.** A wait may be none: each call may have a fixed time, as in a gateway, or others may queue at the server too.
So throughput decides. Where fewer calls in flight get less done to the same degree, they did not wait, and the earlier
number returns. From time to time more are tried, as BBR does (draft-ietf-ccwg-bbr): where as much more gets
done, growth goes on.

**Gains.** Where durations do not follow tokens, as at a gateway, nothing can be learnt from waits. What is done at two
numbers of calls in flight is then compared (`policies.limits.gains`).

**End.** Where calls are refused the search ends (`Queueing.left`), and slow start and refusals find the limit
(`policies.limits.probing`).

Time is measured in rounds: the time of an answer, queue included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import msgspec
from msgspec import field

from policies.limits import gains, told_queue
from policies.limits import waiting as waits
from policies.limits.gains import Gains
from policies.limits.limit_policy import Relief
from policies.limits.told_queue import FEW, MANY, QUEUE, ToldQueue
from policies.limits.waiting import START as START
from policies.limits.waiting import Waiting, WaitReading

QUICK_S: Final = 0.1
"""Mean duration of answers, in seconds, below which no queue is looked for: it costs no time, and messages take as
long. So many seconds' answers may be in flight in any case."""
GROWTH: Final = 2.0
"""Factor of growth, of the calls that do not wait: so its last step is to twice the slots at most."""
QUIET: Final = 0.05
"""Share of the calls in flight that may wait while the number grows, at least `QUIET_CALLS`."""
QUIET_CALLS: Final = 0.5
QUEUE_CALLS: Final = 1.0
"""Calls that wait at least."""
KNOWN: Final = 0.12
"""Share of its time for which a call may wait at most, the error included, by these answers or by the time of a token
that was known: a few answers could come from a slower batch, or from a queue. `KNOWN_ANSWERS` are enough where more
gets done as well."""
KNOWN_ERRORS: Final = 1.5
"""Standard errors by which the mean of as many durations may be less than that by which the time of a token was known.
"""
KNOWN_NOISE: Final = 0.12
"""Standard deviation of durations about those of their tokens, as a share, up to which that is asked for."""
SLOWLY: Final = 128.0
"""Calls in flight from which, where durations vary, the number is cut by these answers alone: what was known of the
time of a token is wrong by as much as one cut, and cuts in a row left half of 1,024 slots empty."""
FIRST: Final = 2.0
"""Answers of a step of growth from which many calls in flight grow on, and that come the sooner, the more are."""
LATE: Final = 1.1
"""Multiple of the time until they came at the step before, from which they are late."""
DOUBT_ROUNDS: Final = 4.0
"""Mean durations of answers after which a step that is taken back is not waited for any more: the connections of its
calls were reset, say. A queue of twice as many calls takes twice as long, and those that are answered first are short;
those of a step told enough within 1.3 (simulated: 104 to 2,048 calls in flight, lengths that vary by .4 to 1.2)."""
LIKELY: Final = 0.35
"""The same for a smaller step where durations vary, and with `START` calls in flight, where one of them waits or none.
"""
LIKELY_ERRORS: Final = 1.5
"""Standard errors that count there."""
KNOWN_ANSWERS: Final = 24
FEW_ANSWERS: Final = 6
"""Answers with `START` calls in flight from which the time of a token need not be the one of the quickest."""
EXACT: Final = 0.05
"""Standard deviation of durations about those of their tokens, as a share, above which some calls may have waited."""
NOISY_ANSWERS: Final = 0.6
"""Answers from which such durations tell it, as a share of the calls in flight."""
STEPS: Final = (1.07, 1.25)
"""First and second step up when none waits; then growth begins again."""
FOLLOWS: Final = 0.6
"""Elasticity of throughput from which it follows the number of calls in flight: what is done per second changes by this
power of the number. A queue has 0, free slots have 1."""
FOLLOWS_FEW: Final = 0.8
"""The same below `FEW_CALLS`, where chance is larger."""
FEW_CALLS: Final = 16
FOLLOWS_PARTLY: Final = 0.3
"""Elasticity from which a part of the calls of a trial found free slots."""
MUCH_MORE: Final = 1.4
"""Factor of a trial from which that is told of few calls as well: at less, chance is larger than what it tells."""
FOLLOWS_GROWING: Final = 0.85
"""Elasticity while the number grows, from which what seems to be a wait is a fixed time of each call."""
FOLLOWS_EVEN: Final = 0.25
"""The same for answers of one length, of which throughput alone tells how many calls were worked on."""
FOLLOWS_MAX: Final = 1.3
"""Elasticity above which the server has changed, and not the number in flight."""
LEARNS: Final = 0.3
"""Weight of a reading in what is known of the time of a token, where calls waited or the number is held."""
TRIAL: Final = 1.15
"""Factor of a trial of more calls."""
ONE_SLOT: Final = 0.5
"""Share of the variance of durations that sizes explain at a server of one slot that has two calls."""
SURE: Final = 3.0
"""Standard errors below it from which time does not follow tokens, of Fisher's transform of the correlation (R. A.
Fisher, On the Probable Error of a Coefficient of Correlation, Metron 1, 1921). Where durations vary by a half for other
reasons this is so after 16 answers or more."""
EXPLAINED: Final = 0.15
"""Share from which time is not said not to follow tokens, however many answers there are."""
EXPLAINED_ANSWERS: Final = 16
"""Answers below which nothing is said of it."""
APART: Final = 0.15
"""Difference of two numbers of calls in flight, of their logarithms, from which what is done at them is compared for
that: chance is as large at less."""
VARIED: Final = 0.15
"""Standard deviation of durations that sizes do not explain, as a share of them, from which a wait is not read from a
few answers."""
VARIED_ANYHOW: Final = 0.3
"""The same where some of the calls may have waited, as long as sizes explain less than `MOSTLY`."""
MOSTLY: Final = 0.7
CERTAIN: Final = 2.0
"""Standard errors of a wait with `START` calls in flight, by which it is one all the same."""
FIRST_ANSWERS: Final = 24
"""Answers with `START` calls in flight before growth ends there."""
TRIAL_AFTER: Final = 8
"""Readings at the beginning until the first trial of more. Then it is twice as many, doubled each time."""
TRIAL_AFTER_MAX: Final = 64


class QuickAnswers(IntEnum):
    """Answers that come within `QUICK_S`."""

    NO = 0
    HOLD = 1
    """They may come later than that if more calls are in flight."""
    GROW = 2


class Queueing(msgspec.Struct, array_like=True):
    """State of the search for one pool."""

    waiting: Waiting = field(default_factory=Waiting)
    growing: bool = True
    """True until calls wait; False while the number is held."""
    calm: int = 0
    """Readings in a row in which none waited."""
    before: float = 0.0
    """Calls in flight before the latest change; 0: there was none."""
    before_s: float = 0.0
    """Mean duration of the answers then, in seconds."""
    before_size: float = 0.0
    """Mean size of these answers, in answer tokens."""
    before_wait_s: float = 0.0
    """Seconds that a call waited then."""
    trial: int = 0
    """1: more calls are tried, -1: fewer, 0: neither."""
    returns: int = 0
    """Cuts in a row that were taken back."""
    rest: int = TRIAL_AFTER
    """Readings until the next trial of more."""
    rests: int = 2 * TRIAL_AFTER
    """Readings between the next two of them."""
    quick: bool = False
    """True while answers come within `QUICK_S`."""
    followed: bool = False
    """Of earlier releases."""
    left: bool = False
    """True once the server refused a call: the search is over."""
    told: ToldQueue = field(default_factory=ToldQueue)
    """State while the server tells how many calls wait: then nothing is searched for."""
    read_s: float = 0.0
    """Time of the latest reading after which the number was kept, in seconds."""
    gains: Gains | None = None
    """State of the search by what is done, once time was seen not to follow tokens."""
    first_s: float = 0.0
    """Seconds from the latest step of growth until its first answers were in; 0: they are not."""
    first_before_s: float = 0.0
    """The same of the step before; 0: not known."""
    doubted: float = 0.0
    """Calls in flight of a step that is taken back until its first answers are in, or for `DOUBT_ROUNDS`; 0: none is.
    """
    doubted_s: float = 0.0
    """Time since when it is, in seconds."""
    burst_s: float = 0.0
    """Seconds from the latest step of growth until the first answers to calls begun with it were in; 0: they are not.
    """
    burst_before_s: float = 0.0
    """The same of the step before; 0: not known."""
    relief: Relief = field(default_factory=Relief)
    """Cut of the calls in flight after an attempt that timed out."""
    resumed_s: float = 0.0
    """Time at which the latest step that was taken back was returned to, in seconds."""


def is_quick(
    queue: Queueing, at_s: float, in_flight: float, samples: Sequence[tuple[float, int]], prompts: Sequence[int],
    usual_s: float,
) -> QuickAnswers:  # fmt: skip
    """Return whether answers come so soon that no queue is looked for, and whether more calls may be in flight.

    The entries are those of `observe`, which is to be called if not; `usual_s`: mean duration of the pool's answers.
    """
    waiting = queue.waiting
    mean_s = waiting.latency_s if waiting.fresh >= FEW_ANSWERS else usual_s
    if not 0 < mean_s < QUICK_S:
        if queue.quick:
            queue.quick = False
            cut(queue, at_s)
        return QuickAnswers.NO
    queue.quick = True
    if samples:
        waits.take(waiting, at_s, in_flight, samples, prompts)
    return QuickAnswers.GROW if mean_s < QUICK_S / 2 else QuickAnswers.HOLD


def observe(
    queue: Queueing, at_s: float, in_flight: float, samples: Sequence[tuple[float, int]], prompts: Sequence[int]
) -> float:
    """Return the calls that may be in flight from now on, after a report at `at_s` in which `in_flight` were.

    `samples`: (seconds, answer tokens) of answers, `prompts`: prompt tokens of the same ones. More must be wanted than
    is in flight, else nothing is learnt.
    """
    waiting = queue.waiting
    if queue.gains is not None:
        if samples and waits.take(waiting, at_s, in_flight, samples, prompts, gains.FADES):
            return _by_gains(queue, queue.gains, at_s, in_flight)
        return in_flight
    if not samples:
        return in_flight
    allowed, doubted = in_flight, _doubted(queue, at_s, in_flight)
    in_flight = doubted or in_flight
    told = waits.take(waiting, at_s, in_flight, samples, prompts, without=_without(queue))
    if waiting.burst >= FIRST:
        queue.burst_s = queue.burst_s or at_s - waiting.from_s
    if doubted and queue.burst_before_s and waiting.fresh >= FIRST:
        queue.first_s = queue.first_s or at_s - waiting.from_s
    if not doubted and _is_late(queue, at_s, in_flight):
        queue.doubted, queue.doubted_s = in_flight, at_s
        return queue.before
    # Few answers are enough where none counts that was begun with the change.
    if queue.growing:
        enough, rounds = (FIRST, 0.4) if in_flight >= waits.LATE_CALLS else (max(2.0, 0.3 * in_flight), 0.85)
    else:
        enough, rounds = (24.0, 0.85) if in_flight >= waits.LATE_CALLS else (max(6.0, 0.8 * in_flight), 1.5)
    if not told or waiting.fresh < enough or at_s < max(waiting.from_s, queue.read_s) + rounds * waiting.latency_s:
        return allowed
    if queue.before == in_flight:  # the number was bounded, or changed back for another reason: nothing to compare
        queue.before, queue.trial = 0.0, 0
    now = waits.read(waiting, in_flight, queue.before)
    if not queue.growing and (now.even or queue.trial > 0) and not _all_around(queue, at_s, in_flight):
        return allowed
    follows = 0.0
    if queue.before:
        now.gain = in_flight / queue.before * waits.shortened(now, queue.before_s, queue.before_size)
        follows = math.log(now.gain) / math.log(in_flight / queue.before)
    if _tells_nothing(queue, in_flight, now, follows):
        queue.gains, queue.growing, queue.before, queue.doubted = Gains(), True, 0.0, 0.0
        return _by_gains(queue, queue.gains, at_s, allowed)
    wanted, trial = (_grown if queue.growing else _held)(queue, in_flight, now, follows)
    if wanted < in_flight:  # a queue of less than that costs no time
        wanted = max(wanted, min(in_flight, in_flight * QUICK_S / now.usual_s))
    wanted = float(max(round(wanted), 1))
    if wanted == doubted and queue.growing and follows < FOLLOWS_PARTLY and now.share - now.error > _quiet(in_flight):
        return allowed
    if doubted:
        queue.doubted, queue.resumed_s = 0.0, at_s
    if wanted != in_flight:
        factor = 1.0
        if now.share <= _quiet(in_flight) or now.noise < EXACT:
            factor = waits.settle(waiting, now.per_token_s, now.wait_s)
        else:  # those that waited are answered the later the longer they are, which makes tokens seem quicker
            waiting.per_token_s += LEARNS * (now.per_token_s - waiting.per_token_s)
        if queue.growing and wanted > in_flight:
            waits.calm(waiting)
        queue.before, queue.before_wait_s = in_flight, now.wait_s
        queue.before_s, queue.before_size = now.mean_s, now.mean_size * factor
        queue.trial, queue.first_before_s, queue.first_s = trial, queue.first_s, 0.0
        # Doubts by mistake leave too few answers to end them soon where durations vary, or the batch slows.
        tells = max(now.noise, now.varied) <= EXACT and follows > FOLLOWS_GROWING
        queue.burst_before_s, queue.burst_s = queue.burst_s if tells else 0.0, 0.0
        waits.begin_anew(waiting, at_s, wanted)
    return wanted


def _doubted(queue: Queueing, at_s: float, in_flight: float) -> float:
    """Return the calls in flight of the step that is taken back for now; 0: none is, or the number was changed again
    for another reason, or its calls are not answered any more."""
    lengths = queue.waiting.lengths
    if queue.doubted_s <= queue.waiting.from_s or in_flight != queue.before:
        queue.doubted = 0.0
    elif queue.doubted and (at_s - queue.doubted_s) * lengths.count > DOUBT_ROUNDS * lengths.s:
        queue.doubted = queue.before = 0.0
        waits.begin_anew(queue.waiting, at_s, in_flight)
    return queue.doubted


def _without(queue: Queueing) -> tuple[float, float]:
    """Return the times from which and until which calls begun count as no answers of the number that is read: those
    begun while its step was taken back, and with the return to it, find free slots, as those begun with a step do."""
    if queue.doubted:
        return queue.doubted_s, math.inf
    return queue.doubted_s, queue.resumed_s + waits.LATE_S


def _is_late(queue: Queueing, at_s: float, in_flight: float) -> bool:
    """Return True if the first answers of a step of growth are not in when they should be, if none waited.

    Twice as many calls are in flight as at the step before, so the quickest of them should be answered sooner. Soonest
    of all come those begun with the step: their answers say little of a wait, but that none comes does. In the same way
    BBR drains the queue that Startup built as soon as the pipe is full, before it probes on (draft-ietf-ccwg-bbr).
    """
    waiting = queue.waiting
    if waiting.fresh >= FIRST:
        queue.first_s = queue.first_s or at_s - waiting.from_s
        return False
    since_s = at_s - waiting.from_s - 2 * waits.LATE_S
    late = 0 < LATE * queue.first_before_s < since_s
    late = late or (waiting.burst < FIRST and 0 < LATE * queue.burst_before_s < since_s)
    return late and queue.growing and waits.LATE_CALLS <= queue.before < in_flight


def _by_gains(queue: Queueing, found: Gains, at_s: float, in_flight: float) -> float:
    """Return the calls that may be in flight where durations tell nothing of a wait."""
    wanted, queue.growing = gains.follow(found, queue.waiting, at_s, in_flight, queue.growing)
    wanted = float(max(round(wanted), 1))
    if wanted != in_flight:  # only those begun after the change stand behind all that wait
        waits.begin_anew(queue.waiting, at_s, max(wanted, waits.LATE_CALLS))
    return wanted


def note(
    queue: Queueing, at_s: float, in_flight: float, samples: Sequence[tuple[float, int]], prompts: Sequence[int]
) -> None:
    """Take in the answers of a report after which the number is kept for another reason."""
    if samples and not queue.left:
        doubted = _doubted(queue, at_s, in_flight)
        waits.take(queue.waiting, at_s, doubted or in_flight, samples, prompts, without=_without(queue))


def _all_around(queue: Queueing, at_s: float, in_flight: float) -> bool:
    """Return True if the answers since the last reading are enough to compare what gets done."""
    waiting = queue.waiting
    from_s = max(waiting.from_s, queue.read_s)
    return waiting.fresh >= min(0.8 * in_flight, 128.0) and at_s >= from_s + 1.5 * waiting.latency_s


def cut(queue: Queueing, at_s: float) -> None:
    """Take in that the calls in flight were cut for another reason."""
    queue.growing, queue.calm, queue.trial, queue.before = False, 0, 0, 0.0
    queue.relief.growing = False
    if queue.gains is not None:
        gains.begin(queue.gains)
    waits.begin_anew(queue.waiting, at_s, 0.0)


def shift(queue: Queueing, by_s: float) -> None:
    """Continue on another clock that is `by_s` ahead."""
    queue.waiting.from_s += by_s
    queue.waiting.heard_s += by_s
    queue.read_s += by_s
    queue.doubted_s += by_s
    queue.resumed_s += by_s
    queue.relief.until_s += by_s
    told_queue.shift(queue.told, by_s)


def _grown(queue: Queueing, in_flight: float, now: WaitReading, follows: float) -> tuple[float, int]:
    """Return the next number while growing, or the first that is held."""
    if now.even:  # those that waited are answered together, after the others
        begun = in_flight - queue.before if queue.before < in_flight else in_flight
        if queue.waiting.fresh < 0.95 * begun * (1 if now.share <= QUIET else 3):
            return in_flight, 0
    quiet, fresh = _quiet(in_flight), queue.waiting.fresh
    if _is_free(queue, now):
        return GROWTH * in_flight, 0
    if now.share <= quiet or _most_known(queue, now) <= KNOWN:
        return _grown_quietly(queue, in_flight, now, follows), 0
    # Much more was done than before, and little waits: that may be a slower batch, so more answers are awaited.
    rounds = 2.0 if (follows > 0.4 and now.share < 0.3) or now.share - now.error <= quiet else 0.6
    least = 8.0 if queue.before else FIRST_ANSWERS
    if fresh < min(max(least, rounds * in_flight), 24 * rounds):
        return in_flight, 0
    if not queue.before and now.steady:
        queue.waiting.fixed_s += now.wait_s
        return GROWTH * in_flight, 0
    if queue.before and follows > (FOLLOWS_FEW if in_flight < FEW_CALLS else FOLLOWS_GROWING):
        if fresh < 2 * in_flight:
            return in_flight, 0
        queue.waiting.fixed_s += now.wait_s
        return GROWTH * in_flight, 0
    if now.even and follows > FOLLOWS_EVEN:  # answers of one length: throughput alone tells
        proven = queue.before * now.gain
        now.per_token_s = max(now.per_token_s, now.usual_s * proven / in_flight / now.size)
        return in_flight * (1 + (GROWTH - 1) * min(follows, 1.0)), 0
    queue.growing, queue.calm, queue.trial, queue.returns = False, 0, 0, 0
    wanted, trial = _held(queue, in_flight, now, follows)
    # The first answers waited less than later ones will, so the throughput is no measure for a trial of fewer.
    return wanted, max(trial, 0)


def _is_free(queue: Queueing, now: WaitReading) -> bool:
    """Return True if with `START` calls in flight, from the beginning, durations are in proportion to lengths."""
    enough = not queue.before and now.compared >= FEW_ANSWERS and now.noise > EXACT
    return enough and now.besides + LIKELY_ERRORS * now.besides_error <= LIKELY


def _quiet(in_flight: float) -> float:
    """Return the share of the calls in flight that may wait while the number grows."""
    return max(QUIET_CALLS / in_flight, QUIET)


def _grown_quietly(queue: Queueing, in_flight: float, now: WaitReading, follows: float) -> float:
    """Return the next number while growing where nearly none waits, once the answers are enough to say so."""
    fresh = queue.waiting.fresh
    if not queue.before and now.share_known > KNOWN and fresh < FEW_ANSWERS:
        return in_flight
    most = now.share + now.error  # the more may wait the smaller is the step, so that no more than the slots do later
    known = _most_known(queue, now)
    if known <= KNOWN and not queue.calm:
        return GROWTH * in_flight * (1 - min(most, known))
    varied = EXACT < now.noise <= VARIED and not 0 < now.varied_calm <= EXACT
    if queue.before and varied and KNOWN < most <= LIKELY and now.share_known <= LIKELY:
        return max(GROWTH * in_flight * (1 - most), in_flight + 1)
    if queue.calm and now.share + now.error > KNOWN and fresh < KNOWN_ANSWERS:
        return in_flight
    if now.noise > EXACT and fresh < min(NOISY_ANSWERS * in_flight, KNOWN_ANSWERS):
        return in_flight
    certain = min(now.share_known, now.share + now.error) <= KNOWN
    if certain or (fresh >= KNOWN_ANSWERS and (follows >= FOLLOWS_PARTLY or not queue.before)):
        return GROWTH * in_flight * (1 - now.share)
    queue.growing = fresh < max(in_flight, KNOWN_ANSWERS)
    return in_flight


def _most_known(queue: Queueing, now: WaitReading) -> float:
    """Return the share that a call waits at most, by the time of a token that was known. A batch works on no call the
    quicker for having more of them, so by as much as a call of its size takes longer than before. 1: not known, or told
    better by the answers themselves."""
    if not queue.before or not EXACT < now.noise <= KNOWN_NOISE:
        return 1.0
    return max(now.share_known, 0.0) + KNOWN_ERRORS * now.noise * math.sqrt(2 / max(queue.waiting.fresh, 1))


def _tells_nothing(queue: Queueing, in_flight: float, now: WaitReading, follows: float) -> bool:
    """Return True if a wait cannot be told from work: time does not follow tokens, or varies too much besides.

    By all answers so far, since chance lets a search that reads nothing but noise leave any number of calls in flight.
    With more than `START`, calls that wait make durations vary too: there nothing is said unless more gets done.
    """
    more = gains.FREE < follows < FOLLOWS_MAX and abs(math.log(in_flight / queue.before)) > APART
    if now.compared < EXPLAINED_ANSWERS or (in_flight > START and not more):
        return False
    correlation = math.sqrt(max(now.explained, 0.0))
    least = math.atanh(math.sqrt(ONE_SLOT)) - SURE / math.sqrt(now.compared - 2)
    if now.explained < EXPLAINED and math.atanh(correlation) < least:
        return True
    if in_flight > START:
        return now.varied_calm > VARIED or (now.varied > VARIED_ANYHOW and now.explained < MOSTLY)
    return now.compared >= FIRST_ANSWERS and now.varied > VARIED and now.besides <= QUIET + CERTAIN * now.besides_error


def _held(queue: Queueing, in_flight: float, now: WaitReading, follows: float) -> tuple[float, int]:
    """Return the number that is held from now on, and the direction of the trial that it is."""
    if in_flight <= START and _is_free(queue, now):
        queue.growing = True
        return GROWTH * in_flight, 0
    if in_flight <= START and not now.steady and (now.compared < EXPLAINED_ANSWERS or now.explained < EXPLAINED):
        return in_flight, 0
    surely = in_flight * (now.share - now.error) > MANY * _queue(in_flight * (1 - now.share))
    if now.error > KNOWN and not surely and queue.waiting.fresh < max(2 * in_flight, KNOWN_ANSWERS):
        return in_flight, queue.trial
    trial, queue.trial = queue.trial, 0
    if trial:
        judged = _judged(queue, trial, in_flight, now, follows)
        if judged is not None:
            return judged, queue.trial
    if in_flight <= START and now.steady:
        queue.waiting.fixed_s += now.wait_s
        queue.growing = True
        return in_flight, 0
    unsure = now.error > KNOWN and not surely and now.share - now.error <= _quiet(in_flight)
    if unsure and in_flight < FEW_CALLS and queue.rests == 2 * TRIAL_AFTER:
        queue.rest, queue.rests = queue.rests, 2 * queue.rests  # what gets done tells it
        return gains.TRIAL * in_flight, 1
    share = now.share - now.error  # too large a cut leaves slots empty
    if now.noise <= EXACT or in_flight < SLOWLY:
        share = max(share, min(now.share, now.share_known))
    wanted = _queue(in_flight * (1 - share))
    waiting = in_flight * share
    if waiting < FEW * wanted:
        queue.calm += 1
        if queue.calm > len(STEPS):
            queue.growing = True
            return in_flight, 0
        return max(in_flight + 1, STEPS[queue.calm - 1] * in_flight), 0
    queue.calm = 0
    if waiting > MANY * wanted:
        return max(in_flight - waiting + wanted, in_flight / GROWTH), -1
    queue.rest -= 1
    if queue.rest <= 0 and (in_flight >= 4 or now.even):
        most = TRIAL_AFTER_MAX if not queue.waiting.fixed_s else TRIAL_AFTER  # it may be a queue after all
        queue.rest, queue.rests = min(queue.rests, most), min(2 * queue.rests, TRIAL_AFTER_MAX)
        return max(in_flight + 1, TRIAL * in_flight), 1
    queue.waiting.fresh, queue.read_s = 0, queue.waiting.heard_s
    queue.waiting.per_token_s += LEARNS * (now.per_token_s - queue.waiting.per_token_s)
    return in_flight, 0


def _judged(queue: Queueing, trial: int, in_flight: float, now: WaitReading, follows: float) -> float | None:
    """Return the number after a trial; None: by the calls that wait."""
    waiting = queue.waiting
    does = follows > (FOLLOWS if in_flight >= FEW_CALLS else FOLLOWS_FEW)
    if trial < 0:
        if not does or follows > FOLLOWS_MAX:
            queue.returns = 0
            return None
        if queue.waiting.fresh < min(2 * in_flight, KNOWN_ANSWERS):  # those that queued before the cut come first
            queue.trial = trial
            return in_flight
        queue.returns += 1
        if queue.returns > 1:  # once may be the server that changed
            waiting.fixed_s += queue.before_wait_s
        return queue.before
    if does:
        # Standard error of what follows: the mean of n durations has that of one divided by √n, at each number.
        error = max(now.noise, now.varied) * math.sqrt(2 / max(waiting.fresh, 1)) / math.log(in_flight / queue.before)
        if follows < SURE * error and waiting.fresh < min(2 * in_flight, KNOWN_ANSWERS):
            queue.trial = trial
            return in_flight
        waiting.fixed_s += now.wait_s
        queue.growing = True
        return in_flight
    if follows <= FOLLOWS_PARTLY or (in_flight < FEW_CALLS and in_flight < MUCH_MORE * queue.before):
        waiting.fixed_s /= 2
        return queue.before
    proven = queue.before * now.gain
    waiting.fixed_s = max(0.0, now.wait_s + waiting.fixed_s - now.usual_s * (1 - proven / in_flight))
    return proven + _queue(proven)


def _queue(served: float) -> float:
    """Return the calls that shall wait beside those that are worked on."""
    return max(QUEUE_CALLS, QUEUE * served)
