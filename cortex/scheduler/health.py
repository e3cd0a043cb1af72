"""Health signals of one subject: a route, branch, worker, channel, node or tool.

A buffer is bounded in count and in age, takes a report in constant time (excess entries are removed in bulk, at twice
the bound), and is cheap to read. Each reading names the decision that uses it; metrics and live views read the same
buffers. Times are the scheduler's, in seconds, and never decrease.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

AGE_MAX_S: Final = 60.0
"""Age limit of what is read, in seconds."""
SLOT_S: Final = 1.0
"""Length of a slot, in seconds."""
SLOTS_MAX: Final = int(AGE_MAX_S / SLOT_S) + 1
SAMPLES_MAX: Final = 256
"""Number of samples: enough for a 95th percentile that changes by a few hundredths at most from sample to sample."""


class SecondCounts(msgspec.Struct, gc=False):
    """Counts of one second."""

    place: int
    """Number of the slot: time divided by `SLOT_S`."""
    begun: int = 0
    answered: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    latency_s: float = 0.0
    failed: dict[str, int] = {}
    per_token_p50_s: float = 0.0
    """Median seconds per output token of its stored samples, once the second is over; 0 if there are none."""
    per_token_p95_s: float = 0.0
    """95th percentile of the same samples."""


class HealthBuffer(msgspec.Struct):
    """Signals of one subject. `record` and `record_life` change it; all other functions read it."""

    seen_s: float = float("-inf")
    """Time of the latest message, of any kind."""
    progressed_s: float = float("-inf")
    """Time of the latest message with new settled work."""
    done: int = 0
    """The subject's own count of settled work, as last reported."""
    slots: list[SecondCounts] = []
    samples: list[tuple[float, float, int]] = []
    """(time of the report, seconds, output tokens) of single attempts."""


class HealthRates(msgspec.Struct, frozen=True):
    """Mean counts per second over the requested time."""

    begun: float
    answered: float
    failed: float
    input_tokens: float
    output_tokens: float


class HealthSeries(msgspec.Struct, frozen=True):
    """Contents of a buffer by second, oldest first; the last entry is the newest complete second.

    All series have one length, and are empty if nothing happened.
    """

    begun: tuple[int, ...] = ()
    answered: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    per_token_p50_s: tuple[float, ...] = ()
    """0 for a second without a sample, here and in the 95th percentile."""
    per_token_p95_s: tuple[float, ...] = ()


def record_life(buffer: HealthBuffer, at_s: float, done: int) -> None:
    """Note that the subject is alive and has settled `done` pieces of work so far (a new incarnation counts from 0)."""
    buffer.seen_s = at_s
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
    """Add counts: `failed` by kind, `latency_s` the sum over the answered, `samples` (seconds, output tokens)."""
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
    """Return the seconds since the latest message; infinity if none. Used by `restart.rung`: ask, or kill."""
    return at_s - buffer.seen_s


def stalled_s(buffer: HealthBuffer, at_s: float) -> float:
    """Return the seconds since the latest progress; infinity if none. Used by `restart.decide`: progress resets the
    deaths.
    """
    return at_s - buffer.progressed_s


def rates(buffer: HealthBuffer, at_s: float, within_s: float = 10.0) -> HealthRates:
    """Return mean counts per second over the newest `within_s` seconds, at most `AGE_MAX_S`, to the slot.

    Used for the number of branches (calls begun), and to decide whether a job's report of a blocked account is accepted
    without a probe (calls answered).
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
    """Return the share of ended attempts that failed, with these kinds or any; 0 if none ended.

    Used for placement and for the choice of the branch to retire: a node or branch that fails far more often than
    others.
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
    """Return the mean seconds of recent answers; 0 if there are none.

    Used for the wait before a tool run asks again while another one tests the tool.
    """
    first = (at_s - AGE_MAX_S) // SLOT_S
    young = [slot for slot in buffer.slots if slot.place > first]
    answered = sum(slot.answered for slot in young)
    return sum(slot.latency_s for slot in young) / answered if answered else 0.0


def per_token_s(buffer: HealthBuffer, at_s: float, share: float) -> float:
    """Return the seconds per output token that `share` of the newest attempts stayed within (0.5: the median); 0 if
    none.

    A long answer does not count as slow. Used for placement: a node whose median or 95th percentile is far above that
    of most others is always or occasionally slow, and avoided.
    """
    return _at([seconds / max(tokens, 1) for _, seconds, tokens in _young(buffer, at_s)], share)


def series(buffer: HealthBuffer, at_s: float, within_s: float = AGE_MAX_S) -> HealthSeries:
    """Return the counts of each of the last `within_s` seconds, for observers: the counts that the decisions read."""
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
    """Median and 95th percentile of one second, over its stored samples."""
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
