"""The metrics that there are: names, units and kinds, once, for every road out.

Names and units are OpenTelemetry's; what Prometheus calls them follows by the rules of its exporter: dots and other
signs become ``_``, the unit is a suffix, a counter ends in ``_total``. Names that begin with ``gen_ai`` are those of
the GenAI conventions, and so are their bounds:
https://github.com/open-telemetry/semantic-conventions-genai, "Generative AI client metrics".
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from actors.observability.base.conventions import OPERATION_DURATION, TOKEN_USAGE

Kind = Literal["counter", "gauge", "sum", "histogram"]
"""``sum`` is a gauge that adds up: over what one process cannot show apart, it is summed; a ``gauge`` is left out."""

DURATION_BOUNDS_S: Final = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
TOKEN_BOUNDS: Final = tuple(float(4**n) for n in range(14))
TURN_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""A turn is a commit: a millisecond on a good disk, a tenth of a second on one that is in trouble."""


class Instrument(msgspec.Struct, frozen=True):
    """One metric."""

    name: str
    kind: Kind
    unit: str
    description: str
    bounds: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """Its name there, without the ``_total`` of a counter."""
        suffix = _UNITS.get(self.unit, "" if self.unit.startswith("{") else self.unit)
        name = prometheus_name(self.name)
        return f"{name}_{suffix}" if suffix and not name.endswith(f"_{suffix}") else name


_UNITS: Final = {"s": "seconds", "By": "bytes", "1": ""}
_ODD = re.compile("[^a-zA-Z0-9]+")


def prometheus_name(name: str) -> str:
    """The name of a metric, or of an attribute as a label."""
    return _ODD.sub("_", name)


_TABLE: Final = (
    Instrument(
        OPERATION_DURATION, "histogram", "s",
        "How long the provider took for one attempt, waits of ours left out", DURATION_BOUNDS_S,
    ),
    Instrument(
        TOKEN_USAGE, "histogram", "{token}",
        "Tokens of one answered attempt, as billed: input with what was read from and written to the cache",
        TOKEN_BOUNDS,
    ),
    Instrument("cortex.turn.duration", "histogram", "s", "Parts of a channel's turn", TURN_BOUNDS_S),
    Instrument("cortex.calls", "counter", "{call}", "Bounded calls that came to an end, by how"),
    Instrument("cortex.attempts", "counter", "{attempt}", "Attempts and tool runs that ended, by how"),
    Instrument("cortex.rows", "counter", "{row}", "Rows, or other top goals, that came to an end"),
    Instrument("cortex.retries", "counter", "{attempt}", "Attempts at a question that had been attempted before"),
    Instrument("cortex.hedges", "counter", "{attempt}", "Attempts made beside a slow one"),
    Instrument("cortex.votes", "counter", "{vote}", "Votes cast"),
    Instrument("cortex.cost", "counter", "USD", "What the provider's answers cost"),
    Instrument("cortex.cost.assumed", "sum", "USD", "Charged for attempts whose cost nobody reported"),
    Instrument("cortex.cost.reserved", "sum", "USD", "The worst case of what is under way"),
    Instrument("cortex.cost.cap", "gauge", "USD", "What known, assumed and reserved never pass together"),
    Instrument("cortex.tokens", "counter", "{token}", "Tokens of answers, by type"),
    Instrument("cortex.tokens.cap", "gauge", "{token}", "What tokens never pass"),
    Instrument("cortex.tokens.committed", "sum", "{token}", "Known, assumed and reserved: compared with the cap"),
    Instrument("cortex.rows.expected", "sum", "{row}", "Rows of the whole input, or as many as are known of"),
    Instrument("cortex.calls.in_flight", "sum", "{call}", "Attempts under way"),
    Instrument("cortex.queue", "sum", "{goal}", "Goals that wait for a permit"),
    Instrument("cortex.permits", "sum", "{permit}", "Attempts that the job may have under way"),
    Instrument("cortex.job.deadline", "gauge", "s", "When the job ends whatever is left, Unix time"),
    Instrument("cortex.job.label", "gauge", "1", "1 for each label that its user gave it"),
    Instrument("cortex.job.progressed", "gauge", "s", "When a call of it last came to an end, Unix time"),
    Instrument("cortex.journal.lag", "gauge", "s", "Longest that an event waited to be on disk, in the last minute"),
    Instrument("cortex.journal.size", "sum", "By", "Journal and write-ahead log on disk"),
    Instrument("cortex.disk.free", "gauge", "By", "Free where the journal is"),
    Instrument("cortex.jobs", "sum", "{job}", "Jobs that hold or want a share"),
    Instrument("cortex.pool.limit", "sum", "{permit}", "Attempts that the pool allows at once, now"),
    Instrument("cortex.pool.in_flight", "sum", "{call}", "Attempts under way in the pool, as branches told"),
    Instrument("cortex.pool.granted", "sum", "{permit}", "Leased to jobs"),
    Instrument("cortex.pool.wanted", "sum", "{permit}", "Asked for by jobs"),
    Instrument("cortex.breaker.state", "gauge", "1", "0 closed, 1 half open, 2 open"),
    Instrument("cortex.breaker.opened", "counter", "{opening}", "How often the breaker opened"),
    Instrument("cortex.probes", "counter", "{probe}", "Probes that a half open breaker gave leave for"),
    Instrument("cortex.restarts", "counter", "{restart}", "Actors started again after a death"),
    Instrument("cortex.kills", "counter", "{kill}", "Actors ended by force"),
    Instrument("cortex.members", "sum", "{actor}", "Branches and workers, by state"),
    Instrument("cortex.nodes", "sum", "{node}", "Nodes, by state"),
    Instrument("cortex.channels.orphaned", "sum", "{channel}", "Channels of jobs whose lease has run out unrenewed"),
)  # fmt: skip

INSTRUMENTS: Final = {each.name: each for each in _TABLE}

JOB: Final = "cortex.job.id"
LABEL: Final = "cortex.label.name"
LABEL_VALUE: Final = "cortex.label.value"
OUTCOME: Final = "cortex.outcome"
KIND: Final = "cortex.kind"
CERTAINTY: Final = "cortex.certainty"
TOKEN_TYPE: Final = "cortex.token.type"
PHASE: Final = "cortex.phase"
POOL: Final = "cortex.pool"
SUBJECT: Final = "cortex.subject"
SUBJECT_KIND: Final = "cortex.subject.kind"
ROLE: Final = "cortex.role"
STATE: Final = "cortex.state"
OVERFLOW: Final = "otel.metric.overflow"
"""The attribute, ``true``, of the one series that stands for all that are not shown apart: as in OpenTelemetry's own
specification of cardinality limits."""
