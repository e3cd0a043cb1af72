"""Table of the metrics: name, unit and kind, for every exporter.

Names and units are OpenTelemetry's. Names for Prometheus follow by the rules of its exporter: dots and other signs
become ``_``, the unit is a suffix, a counter ends in ``_total``. Names are in lower case
(https://prometheus.io/docs/practices/naming, https://opentelemetry.io/docs/specs/semconv/general/naming). A unit of
money is not, so ``usd`` is a part of the name, and the unit an annotation, ``{USD}``, of which no suffix is made. Names
that begin with ``gen_ai`` are those of the GenAI conventions, as are their bucket bounds:
https://github.com/open-telemetry/semantic-conventions-genai, "Generative AI client metrics".
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from actors.observability.base.conventions import OPERATION_DURATION, TOKEN_USAGE

Kind = Literal["counter", "gauge", "sum", "histogram"]
"""Kinds of instruments. ``sum`` is a gauge that may be added up: in a merged series it is summed, whereas a
``gauge`` is left out."""

DURATION_BOUNDS_S: Final = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
"""Bucket bounds of an attempt's duration, in seconds (GenAI conventions)."""
TOKEN_BOUNDS: Final = tuple(float(4**n) for n in range(14))
"""Bucket bounds of an attempt's tokens (GenAI conventions)."""
TURN_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Bucket bounds of a turn's durations, in seconds. A turn is a commit: about 1 ms on a good disk, 0.1 s on a failing
one."""


class Instrument(msgspec.Struct, frozen=True):
    """Metric: its name, kind, unit, description and bucket bounds (empty unless a histogram).

    ``successor``: name of the metric with the same value that takes its place; empty unless deprecated.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    bounds: tuple[float, ...] = ()
    successor: str = ""

    @property
    def prometheus(self) -> str:
        """Name for Prometheus, without the ``_total`` of a counter."""
        suffix = _UNITS.get(self.unit, "" if self.unit.startswith("{") else self.unit)
        name = prometheus_name(self.name)
        return f"{name}_{suffix}" if suffix and not name.endswith(f"_{suffix}") else name


_UNITS: Final = {"s": "seconds", "By": "bytes", "1": ""}
_ODD = re.compile("[^a-zA-Z0-9]+")


def prometheus_name(name: str) -> str:
    """Return the Prometheus name of a metric or of an attribute."""
    return _ODD.sub("_", name)


_TABLE: Final = (
    Instrument(
        OPERATION_DURATION, "histogram", "s",
        "Duration of one attempt at the provider, without waits in Cortex", DURATION_BOUNDS_S,
    ),
    Instrument(
        TOKEN_USAGE, "histogram", "{token}",
        "Tokens of one answered attempt, as billed: input includes cache reads and writes",
        TOKEN_BOUNDS,
    ),
    Instrument("cortex.turn.duration", "histogram", "s", "Parts of a channel's turn", TURN_BOUNDS_S),
    Instrument("cortex.calls", "counter", "{call}", "Bounded calls that have ended, by outcome"),
    Instrument("cortex.attempts", "counter", "{attempt}", "Attempts and tool runs that have ended, by kind"),
    Instrument("cortex.rows", "counter", "{row}", "Rows, or other top goals, that have ended"),
    Instrument("cortex.rows.endings", "counter", "{row}", "Rows, or other top goals, by the ending of their reply"),
    Instrument("cortex.retries", "counter", "{attempt}", "Attempts at a question that was attempted before"),
    Instrument("cortex.hedges", "counter", "{attempt}", "Attempts made beside a slow one"),
    Instrument("cortex.votes", "counter", "{vote}", "Votes cast"),
    Instrument("cortex.cost.usd", "counter", "{USD}", "Cost of the provider's answers"),
    Instrument("cortex.cost.assumed.usd", "sum", "{USD}", "Charged for attempts whose cost was not reported"),
    Instrument("cortex.cost.reserved.usd", "sum", "{USD}", "Worst-case cost of attempts in flight"),
    Instrument("cortex.cost.cap.usd", "gauge", "{USD}", "Limit on known, assumed and reserved cost together"),
    Instrument("cortex.cost", "counter", "USD", "Deprecated: cortex.cost.usd", successor="cortex.cost.usd"),
    Instrument(
        "cortex.cost.assumed", "sum", "USD", "Deprecated: cortex.cost.assumed.usd", successor="cortex.cost.assumed.usd"
    ),
    Instrument(
        "cortex.cost.reserved", "sum", "USD", "Deprecated: cortex.cost.reserved.usd",
        successor="cortex.cost.reserved.usd",
    ),
    Instrument("cortex.cost.cap", "gauge", "USD", "Deprecated: cortex.cost.cap.usd", successor="cortex.cost.cap.usd"),
    Instrument("cortex.tokens", "counter", "{token}", "Tokens of answers, by type"),
    Instrument("cortex.tokens.cap", "gauge", "{token}", "Limit on tokens"),
    Instrument("cortex.tokens.committed", "sum", "{token}", "Known, assumed and reserved: compared with the cap"),
    Instrument("cortex.rows.expected", "sum", "{row}", "Rows of the whole input, or those known so far"),
    Instrument("cortex.rows.unreadable", "sum", "{row}", "Records of the input from which no row can be read"),
    Instrument("cortex.calls.in_flight", "sum", "{call}", "Attempts in flight"),
    Instrument("cortex.calls.open", "sum", "{call}", "Calls that were asked and have not ended"),
    Instrument("cortex.queue", "sum", "{goal}", "Goals that wait for a permit"),
    Instrument("cortex.permits", "sum", "{permit}", "Attempts that the job may have in flight"),
    Instrument("cortex.job.deadline", "gauge", "s", "Deadline of the job, Unix time"),
    Instrument("cortex.job.label", "gauge", "1", "1 for each label of the job"),
    Instrument("cortex.job.progressed", "gauge", "s", "End of the job's most recent call, Unix time"),
    Instrument("cortex.job.blocked", "gauge", "1", "1 while the job waits for its account, model or key; else 0"),
    Instrument("cortex.job.over_budget", "gauge", "1", "1 while a budget of its labels holds the job back; else 0"),
    Instrument("cortex.job.ended.timestamp", "gauge", "s", "End of the job's latest run, Unix time"),
    Instrument("cortex.job.ended.rows", "gauge", "{row}", "Rows at the end of the job's latest run, by outcome"),
    Instrument("cortex.job.ended.cost.usd", "gauge", "{USD}", "Cost of the job at the end of its latest run"),
    Instrument("cortex.ends.kept", "gauge", "s", "How long this process tells of the ends of jobs after them"),
    Instrument("cortex.ends.unread", "gauge", "{job}", "Jobs whose end is not told, since their journal is unreadable"),
    Instrument("cortex.state.up", "gauge", "1", "1 if the state folder can be read, else 0"),
    Instrument("cortex.state.fault", "gauge", "1", "1 for what is wrong with the state folder, else 0"),
    Instrument("cortex.journal.lag", "gauge", "s", "Longest wait of an event to be on disk, in the last minute or now"),
    Instrument("cortex.journal.size", "sum", "By", "Journal and write-ahead log on disk"),
    Instrument("cortex.disk.free", "gauge", "By", "Free space on the journal's disk"),
    Instrument("cortex.jobs", "sum", "{job}", "Jobs that hold or want a share"),
    Instrument("cortex.pool.limit", "sum", "{permit}", "Attempts that the pool allows at once, now"),
    Instrument("cortex.pool.in_flight", "sum", "{call}", "Attempts in flight in the pool, as reported by branches"),
    Instrument("cortex.pool.granted", "sum", "{permit}", "Permits leased to jobs"),
    Instrument("cortex.pool.wanted", "sum", "{permit}", "Permits requested by jobs"),
    Instrument("cortex.breaker.state", "gauge", "1", "0 closed, 1 half open, 2 open"),
    Instrument("cortex.breaker.blocked", "gauge", "1", "1 while its account, model or key is refused, else 0"),
    Instrument("cortex.breaker.opened", "counter", "{opening}", "Times that the breaker opened"),
    Instrument("cortex.probes", "counter", "{probe}", "Probes that a half-open breaker permitted"),
    Instrument("cortex.breaker.given_back", "counter", "{call}", "Calls that came back from an open breaker unsent"),
    Instrument("cortex.restarts", "counter", "{restart}", "Actors started again after a death"),
    Instrument("cortex.kills", "counter", "{kill}", "Actors ended by force"),
    Instrument("cortex.members", "sum", "{actor}", "Branches and workers, by state"),
    Instrument("cortex.nodes", "sum", "{node}", "Nodes, by state"),
    Instrument("cortex.node.lost.timestamp", "gauge", "s", "Loss of a node, Unix time; told until it is replaced"),
    Instrument("cortex.channels.orphaned", "sum", "{channel}", "Channels of jobs whose lease has expired"),
)  # fmt: skip

INSTRUMENTS: Final = {each.name: each for each in _TABLE}
DEPRECATED: Final = {each.successor: each.name for each in _TABLE if each.successor}
"""Names that are exported beside those that took their place."""

JOB: Final = "cortex.job.id"
LABEL: Final = "cortex.label.name"
LABEL_VALUE: Final = "cortex.label.value"
OUTCOME: Final = "cortex.outcome"
KIND: Final = "cortex.kind"
ENDING: Final = "cortex.ending"
FOLDER: Final = "cortex.folder"
"""Path of the state folder on its machine: one of each process, or of each job on Ray. Databases have none."""
SHARD: Final = "cortex.shard"
"""Number of a shard, where its series stand beside those of its job."""
CAUSE: Final = "cortex.cause"
FAULT: Final = "cortex.fault"
CERTAINTY: Final = "cortex.certainty"
TOKEN_TYPE: Final = "cortex.token.type"
PHASE: Final = "cortex.phase"
POOL: Final = "cortex.pool"
SUBJECT: Final = "cortex.subject"
SUBJECT_KIND: Final = "cortex.subject.kind"
ROLE: Final = "cortex.role"
STATE: Final = "cortex.state"
NODE: Final = "cortex.node"
"""Name of a node's pod or host."""
OVERFLOW: Final = "otel.metric.overflow"
"""Attribute, ``true``, of the series that stands for all merged series, as in OpenTelemetry's specification of
cardinality limits."""
