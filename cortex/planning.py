"""What a job will come to, before it is paid for: tokens, money and time, from the sizes of its rows and a sample.

Where rows were asked, all is measured on them (``policies.estimates.forecast``). Where none was, the prompts are still
known, and the replies are not: then what is said is an assumption, and its interval everything between a word and
``max_output_tokens``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cortex.values.reply import Usage
from policies.estimates.duration import CallLimits, Duration, Workload, duration
from policies.estimates.forecast import EstimatedTotal, SampledStratum, line, parts, total
from policies.estimates.price import Price, cost_nusd, worst_nusd
from policies.estimates.strata import Stratum
from policies.failures.retry import RetryPolicy, budget

BYTES_PER_TOKEN: Final = EstimatedTotal(5.0, 3.5, 2.0)
"""Of a prompt, where nothing is measured: long words, plain English (docs.claude.com, glossary), figures and dense
scripts."""
ASSUMED_REPLY: Final = 0.5
"""Share of ``max_output_tokens`` that a reply is taken for, where nothing is measured."""
ASSUMED_FIRST_S: Final = 1.0
ASSUMED_TOKENS_PER_S: Final = 50.0
"""How soon an answer begins and how fast it is written, where nothing is measured; hosted models are about there."""
LATENCIES: Final = 20
JOURNAL_ROW_BYTES: Final = 260
"""What the journal holds of a row besides its text and its reply."""
JOURNAL_GROWTH: Final = 1.12
"""Pages that are not full, indices, snapshots."""
MESSAGE_BYTES: Final = 330
REPLY_BYTES_PER_TOKEN: Final = 4.2
"""A reply as the provider sends it, where none was seen: its frame, and its text."""


class InputRows(msgspec.Struct, frozen=True, kw_only=True):
    """All rows that can be sent, in the order of the input: what each weighs."""

    sizes: Sequence[int]
    """As ``policies.estimates.tokens.body_size`` has it."""
    bounds: Sequence[int]
    """The most input tokens that it can be."""
    outputs: Sequence[int]
    """Its ``max_tokens``."""
    text_bytes: int
    """Of all rows together, as the journal keeps them."""
    known: frozenset[int] = frozenset()
    """Places of rows that somebody has paid for already: their replies are remembered."""


class SampledRow(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a row that was asked."""

    usages: tuple[Usage, ...] = ()
    """Of its answers: several where one did not fit."""
    elapsed_s: tuple[float, ...] = ()
    attempts: int = 1
    """Calls that went out for it, those that were throttled not counted."""
    reply_bytes: int = 0
    answered: bool = True

    def input_tokens(self) -> int:
        """Of all its answers, cached ones included."""
        return sum(each.input_tokens_billed for each in self.usages)

    def output_tokens(self) -> int:
        """Of all its answers."""
        return sum(each.output_tokens for each in self.usages)


class PlanSample(msgspec.Struct, frozen=True):
    """The rows that were asked: which stand for which, and what came of them, by their places."""

    strata: tuple[Stratum, ...]
    seen: Mapping[int, SampledRow]

    @property
    def answered(self) -> frozenset[int]:
        """Rows whose replies the job will find."""
        return frozenset(place for place, each in self.seen.items() if each.answered)


class PlanTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Under which the job will run."""

    price: Price | None
    batch_price: Price | None
    prompt_tokens_max: int
    """M: no prompt is sent that is larger."""
    answers_max: int = 1
    """Answers that a row may take: another one where the first does not fit a schema."""
    limits: CallLimits = CallLimits()
    retry: RetryPolicy = RetryPolicy()


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the job comes to from here on: the sample is behind it. Money in nano-USD; None: no price is known."""

    rows: int
    """Left to be asked."""
    calls: float
    input_tokens: EstimatedTotal
    output_tokens: EstimatedTotal
    cost: EstimatedTotal | None
    batch_cost: EstimatedTotal | None
    worst_nusd: int | None
    """Every prompt at its bound, every reply as long as it may be, each row asked again where a schema allows it, and
    as many retries billed in full as the retry budget has for so many rows."""
    call_worst_nusd: int
    """The dearest single call, which is set aside before it is sent."""
    duration: Duration
    journal_bytes: int
    reply_bytes: int


def planned(rows: InputRows, terms: PlanTerms, sample: PlanSample | None = None) -> JobPlan:
    """The plan. A sample in which no row was answered is none."""
    if sample is None or not sample.answered:
        return _assumed(rows, terms)
    return _measured(rows, terms, sample)


def _measured(rows: InputRows, terms: PlanTerms, sample: PlanSample) -> JobPlan:
    known = {place: each for place, each in sample.seen.items() if each.answered}
    done = sample.answered | rows.known
    left = len(rows.sizes) - len(done)
    size = float(sum(rows.sizes))
    size_rest = size - sum(rows.sizes[place] for place in known)
    size_left = size - sum(rows.sizes[place] for place in done)

    def of_all(values: Mapping[int, float]) -> EstimatedTotal:
        """Of the rows that are left: of all, less those of the sample, and of what then remains the unknown part."""
        strata = [
            SampledStratum(
                each.rows, tuple(float(rows.sizes[place]) for place in each.drawn if place in sample.seen),
                tuple(values.get(place, 0.0) for place in each.drawn if place in sample.seen),
            )
            for each in sample.strata
        ]  # fmt: skip
        rest = total(strata, size).less(sum(values.values()))
        if left + len(known) == len(rows.sizes):
            return rest
        base, slope = line(strata)
        whole = base * (len(rows.sizes) - len(known)) + slope * size_rest
        return rest.scaled(min(max((base * left + slope * size_left) / whole, 0.0), 1.0) if whole > 0 else 0.0)

    most_in, most_out = (
        float(terms.answers_max * (sum(each) - sum(each[place] for place in done)))
        for each in (rows.bounds, rows.outputs)
    )
    inputs = of_all({place: each.input_tokens() for place, each in known.items()}).within(most_in)
    outputs = of_all({place: each.output_tokens() for place, each in known.items()}).within(most_out)
    worst, dearest = _worst(rows, terms, done)
    costs = []
    for price in (terms.price, terms.batch_price):
        bills = {} if price is None else {place: float(_bill(price, each)) for place, each in known.items()}
        costs.append(None if price is None else of_all(bills))
    cost, batch_cost = costs
    calls = of_all({place: float(each.attempts) for place, each in known.items()})
    weights = {place: stratum.weight for stratum in sample.strata for place in stratum.drawn}
    latencies = [(s, weights[place]) for place, each in sample.seen.items() for s in each.elapsed_s]
    sent = max(calls.expected, float(left))
    input_size, output_size = (each.expected / sent if sent else 0.0 for each in (inputs, outputs))
    work = Workload(sent, input_size, output_size, parts(latencies, LATENCIES) or _latencies_s(output_size))
    replies = of_all({place: float(each.reply_bytes) for place, each in known.items()}).expected
    return JobPlan(
        rows=left, calls=sent, input_tokens=inputs, output_tokens=outputs,
        cost=cost.within(worst) if cost is not None and worst is not None else cost, batch_cost=batch_cost,
        worst_nusd=worst, call_worst_nusd=dearest,
        duration=duration(work, terms.limits), journal_bytes=_journal_bytes(rows, replies), reply_bytes=round(replies),
    )  # fmt: skip


def _assumed(rows: InputRows, terms: PlanTerms) -> JobPlan:
    count = len(rows.sizes) - len(rows.known)
    size = float(sum(rows.sizes) - sum(rows.sizes[place] for place in rows.known))
    most = float(sum(rows.outputs) - sum(rows.outputs[place] for place in rows.known))
    inputs = EstimatedTotal(
        *(size / each for each in (BYTES_PER_TOKEN.low, BYTES_PER_TOKEN.expected, BYTES_PER_TOKEN.high))
    )
    outputs = EstimatedTotal(float(count), max(ASSUMED_REPLY * most, float(count)), most)
    worst, dearest = _worst(rows, terms, rows.known)
    costs = [
        None if price is None else EstimatedTotal(
            _at(price, inputs.low, outputs.low, count), _at(price, inputs.expected, outputs.expected, count),
            _at(price, inputs.high, outputs.high, count),
        )
        for price in (terms.price, terms.batch_price)
    ]  # fmt: skip
    input_size, output_size = inputs.expected / max(count, 1), outputs.expected / max(count, 1)
    work = Workload(float(count), input_size, output_size, _latencies_s(output_size))
    replies = count * MESSAGE_BYTES + outputs.expected * REPLY_BYTES_PER_TOKEN
    return JobPlan(
        rows=count, calls=float(count), input_tokens=inputs, output_tokens=outputs,
        cost=costs[0].within(worst) if costs[0] is not None and worst is not None else None, batch_cost=costs[1],
        worst_nusd=worst, call_worst_nusd=dearest,
        duration=duration(work, terms.limits), journal_bytes=_journal_bytes(rows, replies), reply_bytes=round(replies),
    )  # fmt: skip


def _latencies_s(output_tokens: float) -> tuple[float, ...]:
    """How long answers of such a mean length take, where none was waited for."""
    mean_s = ASSUMED_FIRST_S + output_tokens / ASSUMED_TOKENS_PER_S
    return tuple(mean_s * each for each in (0.5, 0.75, 1.0, 1.25, 1.5))


def _bill(price: Price, seen: SampledRow) -> int:
    return sum(cost_nusd(price, each) for each in seen.usages)


def _at(price: Price, input_tokens: float, output_tokens: float, rows: int) -> float:
    """So many tokens in so many rows, at the rates of a row of mean size."""
    if not rows:
        return 0.0
    many = 1_000
    usage = Usage(round(input_tokens / rows), 0)
    one = cost_nusd(price, usage) if price.tiers else 0
    plain = msgspec.structs.replace(price, tiers=())
    inputs = rows * one if one else cost_nusd(plain, Usage(round(input_tokens * many), 0)) / many
    return inputs + cost_nusd(plain, Usage(0, round(output_tokens * many))) / many


def _worst(rows: InputRows, terms: PlanTerms, done: frozenset[int]) -> tuple[int | None, int]:
    """The most that the rows which are left can cost, and the most that one call can."""
    price = terms.price
    if price is None:
        return None, 0
    plain = msgspec.structs.replace(price, tiers=())
    first = price.tiers[0].above_input_tokens if price.tiers else None
    room = terms.prompt_tokens_max
    inputs = outputs = tiered = dearest = count = 0
    for place, (bound, output) in enumerate(zip(rows.bounds, rows.outputs, strict=True)):
        if place in done:
            continue
        bound = min(bound, room)
        count += 1
        if first is not None and bound > first:
            each = worst_nusd(price, bound, output)
            tiered += each
            dearest = max(dearest, each)
        else:
            inputs += bound
            outputs += output
    whole = tiered + worst_nusd(plain, inputs, outputs)
    if count:
        largest = (min(max(rows.bounds), room), max(rows.outputs))
        dearest = max(dearest, worst_nusd(price, *largest))
        whole = whole * terms.answers_max + budget(terms.retry, count) * -(-whole // count)
    return whole, dearest


def _journal_bytes(rows: InputRows, replies: float) -> int:
    return round(JOURNAL_GROWTH * (rows.text_bytes + replies + JOURNAL_ROW_BYTES * len(rows.sizes)))
