"""What the cortex has heard of one subject: a route, branch, worker, channel, node or tool.

A buffer is bounded twice, in count and in age, takes a report in constant time (what is too much is cut off in bulk,
at twice the bound), and is cheap to read. Each reading names the decision that it is for; metrics and live views are
readings of the same buffers. Times are the scheduler's, in seconds, and never decrease.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

AGE_MAX_S: Final = 60.0
"""Nothing older is read."""
SLOT_S: Final = 1.0
SLOTS_MAX: Final = int(AGE_MAX_S / SLOT_S) + 1
SAMPLES_MAX: Final = 256
"""Enough for a 95th percentile that moves by no more than a few hundredths from sample to sample."""


class SecondCounts(msgspec.Struct, gc=False):
    """Counts of one second."""

    place: int
    begun: int = 0
    answered: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    latency_s: float = 0.0
    failed: dict[str, int] = {}
    per_token_p50_s: float = 0.0
    """Of the samples that were kept of it, once it is over; 0 where there are none."""
    per_token_p95_s: float = 0.0


class HealthBuffer(msgspec.Struct):
    """Signals of one subject. `record` and `hear` change it; everything else reads."""

    heard_s: float = float("-inf")
    """When it was last heard of, whatever it said."""
    progressed_s: float = float("-inf")
    """When it last told of work that it had not told of before."""
    done: int = 0
    """Its own count of work settled, as last told."""
    slots: list[SecondCounts] = []
    samples: list[tuple[float, float, int]] = []
    """(when it was told, seconds, output tokens) of single attempts."""


class HealthRates(msgspec.Struct, frozen=True):
    """A second's worth of each, over the time that was asked for."""

    begun: float
    answered: float
    failed: float
    input_tokens: float
    output_tokens: float


class HealthSeries(msgspec.Struct, frozen=True):
    """The buffer second by second, the oldest first; the last one is the newest second that is over.

    All are of one length, and empty where nothing happened.
    """

    begun: tuple[int, ...] = ()
    answered: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    per_token_p50_s: tuple[float, ...] = ()
    """0 in a second of which no sample is known; so for the other."""
    per_token_p95_s: tuple[float, ...] = ()


def hear(buffer: HealthBuffer, at_s: float, done: int) -> None:
    """It is there, and has settled `done` pieces of work in its life (a new incarnation counts anew)."""
    buffer.heard_s = at_s
    if done != buffer.done:
        buffer.done = done
        buffer.progressed_s = at_s


def record(
    buffer: HealthBuffer,
    at_s: float,
    begun: int = 0,
    answered: int = 0,
    failed: Mapping[str, int] | None = None,
    latency_s: float = 0.0,
    input_tokens: int = 0,
    output_tokens: int = 0,
    samples: Collection[tuple[float, int]] = (),
) -> None:
    """Take in counts: `failed` by kind, `latency_s` the sum over the answered, `samples` (seconds, output tokens)."""
    slots = buffer.slots
    if not slots or at_s >= (slots[-1].place + 1) * SLOT_S:
        if slots:
            slots[-1].per_token_p50_s, slots[-1].per_token_p95_s = _per_token_of(buffer, slots[-1])
        slots.append(SecondCounts(int(at_s // SLOT_S)))
        if len(slots) > 2 * SLOTS_MAX:
            del slots[:-SLOTS_MAX]
    slot = slots[-1]
    slot.begun += begun
    slot.answered += answered
    slot.input_tokens += input_tokens
    slot.output_tokens += output_tokens
    slot.latency_s += latency_s
    if failed:
        for kind, n in failed.items():
            slot.failed[kind] = slot.failed.get(kind, 0) + n
    if samples:
        kept = buffer.samples
        for seconds, tokens in samples:
            kept.append((at_s, seconds, tokens))
        if len(kept) > 2 * SAMPLES_MAX:
            del kept[:-SAMPLES_MAX]


# --------------------------------------------------------------------------------------- the readings


def silent_s(buffer: HealthBuffer, at_s: float) -> float:
    """Seconds since it was heard of; infinity if never. For `restart.rung`: ask, or kill."""
    return at_s - buffer.heard_s


def stalled_s(buffer: HealthBuffer, at_s: float) -> float:
    """Seconds since it got on; infinity if never. For `restart.decide`: a death after progress begins anew."""
    return at_s - buffer.progressed_s


def rates(buffer: HealthBuffer, at_s: float, within_s: float = 10.0) -> HealthRates:
    """Of the newest `within_s` seconds, at most `AGE_MAX_S`, to the slot.

    For how many branches are wanted (what is begun), and whether a job that says its account is blocked is believed
    without a probe (what is answered).
    """
    begun = answered = failed = input_tokens = output_tokens = 0
    within_s = min(within_s, AGE_MAX_S)
    first = (at_s - within_s) // SLOT_S
    for slot in reversed(buffer.slots):
        if slot.place <= first:
            break
        begun, answered = begun + slot.begun, answered + slot.answered
        failed += sum(slot.failed.values())
        input_tokens, output_tokens = input_tokens + slot.input_tokens, output_tokens + slot.output_tokens
    return HealthRates(*(n / within_s for n in (begun, answered, failed, input_tokens, output_tokens)))


def failure_share(buffer: HealthBuffer, at_s: float, kinds: Collection[str] = (), within_s: float = AGE_MAX_S) -> float:
    """Share of the attempts that ended which failed, of these kinds or of any; 0 where none ended.

    For where branches are placed, and which one goes first: a node or branch that fails far more often than others.
    """
    first = (at_s - min(within_s, AGE_MAX_S)) // SLOT_S
    ended = failed = 0
    for slot in reversed(buffer.slots):
        if slot.place <= first:
            break
        ended += slot.answered + sum(slot.failed.values())
        failed += sum(n for kind, n in slot.failed.items() if not kinds or kind in kinds)
    return failed / ended if ended else 0.0


def latency_s(buffer: HealthBuffer, at_s: float) -> float:
    """Mean seconds of what was answered of late; 0 where nothing was.

    For how soon a run is to ask again for leave, while another one finds out whether the tool is well.
    """
    first = (at_s - AGE_MAX_S) // SLOT_S
    young = [slot for slot in buffer.slots if slot.place > first]
    answered = sum(slot.answered for slot in young)
    return sum(slot.latency_s for slot in young) / answered if answered else 0.0


def per_token_s(buffer: HealthBuffer, at_s: float, share: float) -> float:
    """Seconds an output token that `share` of the newest attempts stayed within; 0 where none is known. The median is
    `share` 0.5. A long answer is not a slow one.

    For where branches are placed: a node whose median, or whose 95th percentile, is far over that of most others is
    slow, always or now and then, and avoided.
    """
    return _at([seconds / max(tokens, 1) for _, seconds, tokens in _young(buffer, at_s)], share)


def series(buffer: HealthBuffer, at_s: float, within_s: float = AGE_MAX_S) -> HealthSeries:
    """Each second of so many, for whoever looks on: the same counts that the decisions read."""
    seconds = int(min(within_s, AGE_MAX_S) / SLOT_S)
    first = int(at_s // SLOT_S) - seconds
    slots = {slot.place - first: slot for slot in buffer.slots if first <= slot.place < first + seconds}
    if not slots:
        return HealthSeries()
    last = buffer.slots[-1]
    rows: list[tuple[int, int, int, float, float]] = []
    for at in range(seconds):
        slot = slots.get(at)
        if slot is None:
            rows.append((0, 0, 0, 0.0, 0.0))
            continue
        per_token = _per_token_of(buffer, slot) if slot is last else (slot.per_token_p50_s, slot.per_token_p95_s)
        rows.append((slot.begun, slot.answered, sum(slot.failed.values()), *per_token))
    begun, answered, failed, p50, p95 = zip(*rows, strict=True)
    return HealthSeries(begun, answered, failed, p50, p95)


def _per_token_of(buffer: HealthBuffer, slot: SecondCounts) -> tuple[float, float]:
    """Median and 95th percentile of one second, over those of its samples that are kept."""
    from_s, to_s = slot.place * SLOT_S, (slot.place + 1) * SLOT_S
    values = []
    for at_s, seconds, tokens in reversed(buffer.samples):
        if at_s < from_s:
            break
        if at_s < to_s:
            values.append(seconds / max(tokens, 1))
    return _at(values, 0.5), _at(values, 0.95)


def _young(buffer: HealthBuffer, at_s: float) -> list[tuple[float, float, int]]:
    return [sample for sample in buffer.samples[-SAMPLES_MAX:] if sample[0] > at_s - AGE_MAX_S]


def _at(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
