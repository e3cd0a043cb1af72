"""Plan of a job before it is paid for: tokens, money and time, from the sizes of its rows and a sample.

With a sample of answered rows, everything is measured on it (``policies.estimates.forecast``). Without one the prompts
are known and the replies are not: then the figures are assumptions, and their interval spans everything from one token
to ``max_output_tokens``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cortex.values.reply import Usage
from policies.estimates.duration import CallLimits, Duration, Workload, duration
from policies.estimates.forecast import EstimatedTotal, SampledStratum, line, parts, total
from policies.estimates.price import Price, cost_nusd, worst_nusd
from policies.estimates.reply_bounds import bounds
from policies.estimates.strata import Stratum
from policies.failures.retry import RetryPolicy, budget

BYTES_PER_TOKEN: Final = EstimatedTotal(5.0, 3.5, 2.0)
"""Bytes per prompt token without a measurement: long words, plain English (docs.claude.com, glossary), figures and
dense scripts."""
ASSUMED_REPLY: Final = 0.5
"""Assumed length of a reply without a measurement, as a share of ``max_output_tokens``."""
ASSUMED_FIRST_S: Final = 1.0
"""Assumed seconds until the first token of an answer; typical of hosted models."""
ASSUMED_TOKENS_PER_S: Final = 50.0
"""Assumed output tokens per second of an answer; typical of hosted models."""
LATENCIES: Final = 20
"""Number of equal parts into which measured latencies are divided."""
JOURNAL_ROW_BYTES: Final = 260
"""Bytes in the journal for each row, besides its text and its reply."""
JOURNAL_GROWTH: Final = 1.12
"""Factor for partly filled pages, indices and snapshots."""
MESSAGE_BYTES: Final = 330
"""Bytes of the frame of a reply without a measurement."""
REPLY_BYTES_PER_TOKEN: Final = 4.2
"""Bytes of a reply's text per token without a measurement."""


class InputRows(msgspec.Struct, frozen=True, kw_only=True):
    """All valid rows, in the order of the input, with their sizes."""

    sizes: Sequence[int]
    """Sizes in bytes by ``policies.estimates.tokens.body_size``."""
    bounds: Sequence[int]
    """Upper bounds of the input tokens."""
    outputs: Sequence[int]
    """``max_tokens`` of each row."""
    text_bytes: int
    """Bytes of all rows together, as stored in the journal."""
    known: frozenset[int] = frozenset()
    """Positions of rows that were paid for earlier: their replies are stored."""


class SampledRow(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a sampled row."""

    usages: tuple[Usage, ...] = ()
    """Usage of its answers: several if one did not fit the schema."""
    elapsed_s: tuple[float, ...] = ()
    """Latency of each answer, in seconds."""
    attempts: int = 1
    """Calls that were sent for it, throttled ones excluded."""
    reply_bytes: int = 0
    """Bytes of its replies in the journal."""
    answered: bool = True
    """False if the row got no answer."""

    def input_tokens(self) -> int:
        """Return the input tokens of all its answers, cached ones included."""
        return sum(each.input_tokens_billed for each in self.usages)

    def output_tokens(self) -> int:
        """Return the output tokens of all its answers."""
        return sum(each.output_tokens for each in self.usages)


class PlanSample(msgspec.Struct, frozen=True):
    """Sampled rows: their strata, and their outcomes by position."""

    strata: tuple[Stratum, ...]
    """Strata with the positions of their sampled rows."""
    seen: Mapping[int, SampledRow]
    """Outcomes of the sampled rows, by position."""

    @property
    def answered(self) -> frozenset[int]:
        """Positions of rows whose replies the job will find stored."""
        return frozenset(place for place, each in self.seen.items() if each.answered)


class PlanTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Terms under which the job will run."""

    price: Price | None
    """Price of single calls; None: not known."""
    batch_price: Price | None
    """Price of message batches; None: not known, or no batches."""
    prompt_tokens_max: int
    """M: upper bound of every prompt, in tokens."""
    answers_max: int = 1
    """Answers that a row may take: 2 if a reply that does not fit a schema is asked again."""
    votes: int = 1
    """Times that each row is asked at most, of which ``answers_max`` counts all."""
    longer: bool = False
    """True if a row whose reply was cut is asked again with a larger bound (``policies.estimates.reply_bounds``)."""
    output_tokens_max: int | None = None
    """Most tokens of a reply of the model; None: not known."""
    limits: CallLimits = CallLimits()
    """Rates and caps that bound the duration."""
    retry: RetryPolicy = RetryPolicy()
    """Retry policy, for the worst case."""


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Forecast of the rest of a job, without the sample. Money in 1e-9 USD; None: no price is known."""

    rows: int
    """Rows left to be asked."""
    calls: float
    """Expected number of calls."""
    input_tokens: EstimatedTotal
    output_tokens: EstimatedTotal
    cost: EstimatedTotal | None
    """Cost by single calls."""
    batch_cost: EstimatedTotal | None
    """Cost by message batches."""
    worst_nusd: int | None
    """Upper bound: every prompt at its bound, every reply at ``max_tokens``, each row asked again if a schema allows
    it, and with each larger bound if ``longer`` holds, and as many retries billed in full as the retry budget allows
    for these rows."""
    call_worst_nusd: int
    """Highest cost of a single call, which is reserved before it is sent."""
    duration: Duration
    """Duration by single calls."""
    journal_bytes: int
    """Expected size of the journal."""
    reply_bytes: int
    """Expected size of all replies."""


def planned(rows: InputRows, terms: PlanTerms, sample: PlanSample | None = None) -> JobPlan:
    """Return the plan. A sample without an answered row counts as no sample, and so does one whose provider reports no
    usage."""
    if sample is None or not sample.answered:
        return _assumed(rows, terms)
    if any(usage.unknown for each in sample.seen.values() for usage in each.usages):
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
        """Estimate for the rows left: the total of all rows, less the sample, times the share of unknown rows."""
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

    calls_of = _CallBounds(terms)
    left_places = [place for place in range(len(rows.sizes)) if place not in done]
    most_in = float(sum(rows.bounds[place] * len(calls_of(rows.outputs[place])) for place in left_places))
    most_out = float(sum(sum(calls_of(rows.outputs[place])) for place in left_places))
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
    left = len(rows.sizes) - len(rows.known)
    count = left * terms.votes  # all of them: how soon they decide is not known
    size = terms.votes * float(sum(rows.sizes) - sum(rows.sizes[place] for place in rows.known))
    most = terms.votes * float(sum(rows.outputs) - sum(rows.outputs[place] for place in rows.known))
    most_asked, most_out = 1.0, most
    if terms.longer:  # each row may be cut at every bound
        bounds_of = _CallBounds(msgspec.structs.replace(terms, answers_max=1))
        each_row = [bounds_of(each) for place, each in enumerate(rows.outputs) if place not in rows.known]
        most_asked, most_out = float(max(map(len, each_row), default=1)), terms.votes * float(sum(map(sum, each_row)))
    inputs = EstimatedTotal(
        size / BYTES_PER_TOKEN.low, size / BYTES_PER_TOKEN.expected, most_asked * size / BYTES_PER_TOKEN.high
    )
    outputs = EstimatedTotal(float(count), max(ASSUMED_REPLY * most, float(count)), most_out)
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
        rows=left, calls=float(count), input_tokens=inputs, output_tokens=outputs,
        cost=costs[0].within(worst) if costs[0] is not None and worst is not None else None, batch_cost=costs[1],
        worst_nusd=worst, call_worst_nusd=dearest,
        duration=duration(work, terms.limits), journal_bytes=_journal_bytes(rows, replies), reply_bytes=round(replies),
    )  # fmt: skip


def _latencies_s(output_tokens: float) -> tuple[float, ...]:
    """Assumed latencies of answers with this mean length."""
    mean_s = ASSUMED_FIRST_S + output_tokens / ASSUMED_TOKENS_PER_S
    return tuple(mean_s * each for each in (0.5, 0.75, 1.0, 1.25, 1.5))


def _bill(price: Price, seen: SampledRow) -> int:
    return sum(cost_nusd(price, each) for each in seen.usages)


def _at(price: Price, input_tokens: float, output_tokens: float, rows: int) -> float:
    """Cost of this number of tokens in this number of rows, at the rates of a row of mean size."""
    if not rows:
        return 0.0
    many = 1_000
    usage = Usage(round(input_tokens / rows), 0)
    one = cost_nusd(price, usage) if price.tiers else 0
    plain = msgspec.structs.replace(price, tiers=())
    inputs = rows * one if one else cost_nusd(plain, Usage(round(input_tokens * many), 0)) / many
    return inputs + cost_nusd(plain, Usage(0, round(output_tokens * many))) / many


class _CallBounds(dict[int, tuple[int, ...]]):
    """Bound of a row's first call -> bounds on the reply tokens of all calls that the row may take, the largest last.
    """

    def __init__(self, terms: PlanTerms) -> None:
        self._terms = terms

    def __call__(self, own: int) -> tuple[int, ...]:
        """Return the bounds."""
        return self[own]

    def __missing__(self, own: int) -> tuple[int, ...]:
        terms = self._terms
        each = tuple(bounds(own, terms.output_tokens_max)) if terms.longer else (own,)
        self[own] = each + each[-1:] * (terms.answers_max - 1)
        return self[own]


def _worst(rows: InputRows, terms: PlanTerms, done: frozenset[int]) -> tuple[int | None, int]:
    """Highest cost of the rows left, and of a single call."""
    price = terms.price
    if price is None:
        return None, 0
    plain = msgspec.structs.replace(price, tiers=())
    first = price.tiers[0].above_input_tokens if price.tiers else None
    room, calls_of = terms.prompt_tokens_max, _CallBounds(terms)
    inputs = outputs = largest_inputs = largest_outputs = 0  # of all calls; of the largest call of each row
    tiered = largest_tiered = dearest = count = asked = 0
    for place, (bound, output) in enumerate(zip(rows.bounds, rows.outputs, strict=True)):
        if place in done:
            continue
        bound, calls = min(bound, room), calls_of(output)
        count, asked = count + 1, asked + len(calls)
        if first is not None and bound > first:
            each = worst_nusd(price, bound, calls[-1])
            tiered += sum(worst_nusd(price, bound, tokens) for tokens in calls)
            largest_tiered, dearest = largest_tiered + each, max(dearest, each)
        else:
            inputs, outputs = inputs + bound * len(calls), outputs + sum(calls)
            largest_inputs, largest_outputs = largest_inputs + bound, largest_outputs + calls[-1]
    whole = tiered + worst_nusd(plain, inputs, outputs)
    if count:
        largest = (min(max(rows.bounds), room), max(calls_of(each)[-1] for each in set(rows.outputs)))
        dearest = max(dearest, worst_nusd(price, *largest))
        retried = largest_tiered + worst_nusd(plain, largest_inputs, largest_outputs)
        whole += budget(terms.retry, asked) * -(-retried // count)
    return whole, dearest


def _journal_bytes(rows: InputRows, replies: float) -> int:
    return round(JOURNAL_GROWTH * (rows.text_bytes + replies + JOURNAL_ROW_BYTES * len(rows.sizes)))
