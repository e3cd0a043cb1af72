"""Log records about the life of a job, and about the cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from actors.jobs.bill_excess import cap_passed, excess_facts
from actors.jobs.summary import calls_of, unreadable_rows
from actors.jobs.wait_reasons import lacking, named, stands_still
from actors.monitoring.row_failures import RowFailureMonitor, failed_rows
from actors.monitoring.stall_detector import REPORT_AFTER_S
from actors.observability.base.settings import TelemetrySettings
from actors.observability.logs.formatting import log_arguments
from actors.observability.logs.levels import level_of_end, level_of_pause
from actors.observability.metrics.job_meter import Sampled, nobody
from cortex.scheduler import protocol
from cortex.scheduler.state import SchedulerState
from cortex.state import commands, events
from cortex.state.route_share import RouteShare
from cortex.state.state import State
from policies.estimates.bill_excess import BillExcess
from policies.estimates.price import usd
from policies.failures.failure import FailureKind

FAILURES_S: Final = 10.0
"""Least seconds between two records of failed attempts; failures in between are counted together. Seconds between two
looks at the ended rows, whether or not any failed: the share of failed ones is that of the rows since the last look."""

_log = logging.getLogger("cortex.job")
_cluster = logging.getLogger("cortex.cluster")
_RARE: Final = frozenset(
    {
        events.Opened,
        events.Rejoined,
        events.LimitsSet,
        events.Stopped,
        events.Resumed,
        events.AnswerGiven,
        events.SubmissionUncertain,
        events.RowsReopened,
    }
)


class JobLog:
    """Job observer that writes the job's log. ``monotonic_s``: monotonic seconds. ``sampled``: returns the trace of
    an attempt, if the trace is kept."""

    def __init__(self, job: str, monotonic_s: Callable[[], float] = time.monotonic, sampled: Sampled = nobody) -> None:
        self._job, self._monotonic_s, self._sampled = job, monotonic_s, sampled
        self._k: State | None = None
        self._failures: dict[str, int] = {}
        self._rows = RowFailureMonitor()
        self._next_s = self._next_rows_s = 0.0
        self._paused: object = None
        self._outcome = self._halted = ""
        self._still: dict[int, float] = {}
        """Routes that were reported as without replies, by index, and since when."""
        self._billed: dict[int, float] = {}
        """Worst ratio of a bill to its reservation that was reported of a route, by index."""
        self._passed = False
        """True once it was reported that a cap was passed."""

    def turn(self, seq: int, turn: events.Turn, out: list[commands.Command], k: State) -> None:
        """Log the rare events of a turn; count failures."""
        if self._k is None:
            self._failures = dict(k.tally.failures)
            self._rows = RowFailureMonitor(*_ended(k))
        self._k = k
        for batch in turn.batches:
            if batch and type(batch[0]) in _RARE:
                for event in batch:
                    self._rare(event, k)
        if k.paused is not self._paused:
            self._pause(k)
        for place, share in enumerate(k.shares):
            if share.failing is not None or place in self._still:
                self._look_on(place, share)
            if share.excess is not None:
                self._look_at_bills(place, share.excess)
        if k.halted != self._halted:
            self._halted = k.halted
            if k.halted:
                self._write("the failure limit is reached: no new goals are started", why=_first(k.halted))
        now_s = self._monotonic_s()
        if k.tally.failures != self._failures and (k.outcome or now_s >= self._next_s):
            self._next_s = now_s + FAILURES_S
            self._fail(k)
        if now_s >= self._next_rows_s or k.outcome:
            self._next_rows_s = now_s + FAILURES_S
            self._look_at_rows(k)
        if k.outcome != self._outcome:
            self._end(k)
        if _log.isEnabledFor(logging.DEBUG):
            self._each(turn)

    def close(self) -> None:
        """Log that the channel ends, if the job has not ended."""
        if self._k is not None and not self._k.outcome:
            self._write("the channel ends, and the job goes on elsewhere or later")

    # -- records --------------------------------------------------------------------------------------------------

    def _write(self, message: str, level: int = logging.INFO, **fields: Any) -> None:
        epoch = self._k.epoch if self._k is not None else None
        _log.log(level, **log_arguments(message, job=self._job, epoch=epoch, **fields))

    def _rare(self, event: events.Event, k: State) -> None:
        if isinstance(event, events.Opened):
            self._write(
                "the job begins", event="job.begun", program=event.terms.program, model=event.terms.route.model,
                release=event.terms.fingerprint[:12],
            )  # fmt: skip
        elif isinstance(event, events.Rejoined):
            self._write("the channel is back", event="job.rejoined", held=len(event.held))
        elif isinstance(event, events.LimitsSet):
            changed = msgspec.to_builtins(event.limits)
            usual = msgspec.to_builtins(type(event.limits)())
            now = {name: value for name, value in changed.items() if value != usual[name]}
            self._write("limits were set", event="job.set", who=event.who, limits=now)
        elif isinstance(event, events.Stopped):
            self._write("a stop of the job was requested", event=f"job.{event.how}", who=event.who, how=event.how)
        elif isinstance(event, events.Resumed):
            self._write("the job was resumed", event="job.resumed", who=event.who)
        elif isinstance(event, events.RowsReopened):
            self._write(
                "failed rows are asked again", event="job.reopened", who=event.who, rows=len(event.keys),
                kinds=event.kinds,
            )  # fmt: skip
        elif isinstance(event, events.AnswerGiven):
            approval = event.name.startswith("approve:")
            self._write("an answer was given", event="job.approved" if approval else "job.answered", who=event.who)
        elif isinstance(event, events.SubmissionUncertain):
            self._write("the outcome of a message batch is unknown", logging.WARNING, submission=event.number)

    def _pause(self, k: State) -> None:
        failure, self._paused = k.paused, k.paused
        if failure is None:
            self._write("the job goes on", event="job.unblocked")
            return
        self._write(
            "the budget is reached" if failure.kind == "over_budget" else "the job is blocked",
            level_of_pause(failure.kind),
            event="job.blocked", kind=str(failure.kind), status=failure.status or None, error_type=failure.error_type,
        )  # fmt: skip

    def _look_on(self, place: int, share: RouteShare) -> None:
        """Log a route that gives no usable replies, and its first reply after that. The error text is logged only for a
        request that was never sent: a provider's text may quote a prompt."""
        k, failure = self._k, share.failing
        assert k is not None
        if failure is None:
            waited_s = round(k.at_s - self._still.pop(place), 3)
            where = named(k.terms.routes[place])
            self._write("a route replies again", event="job.goes_on", route=where, waited_s=waited_s)
        elif place not in self._still and stands_still(share) and k.at_s - share.failing_s >= REPORT_AFTER_S:
            self._still[place] = share.failing_s
            self._write(
                f"the job waits: {lacking(failure)} from a route", logging.WARNING, event="job.waits",
                route=named(k.terms.routes[place]), kind=str(failure.kind), status=failure.status or None,
                error=failure.message if not failure.sent else None, since_s=share.failing_s,
            )  # fmt: skip

    def _look_at_bills(self, place: int, excess: BillExcess) -> None:
        """Warn of the first bill of a route that is higher than was reserved, of a ratio twice as bad as the one
        reported, and of a cap that is passed."""
        k = self._k
        assert k is not None
        facts = excess_facts(k)
        passed = cap_passed(facts)
        if excess.times < 2 * self._billed.get(place, 0.0) and passed == self._passed:
            return
        self._billed[place], self._passed = excess.times, passed
        self._write(
            "a cap was passed: the provider bills more than was reserved" if passed
            else "the provider bills more than was reserved: more is reserved, for one call at a time",
            logging.WARNING, event="job.overbilled", route=named(k.terms.routes[place]), times=round(excess.times, 3),
            replies=excess.replies, over_usd=usd(excess.over_nusd), over_tokens=excess.over_tokens,
            over_cap_usd=facts["cost_over_cap_usd"] or None, tokens_over_cap=facts["tokens_over_cap"] or None,
        )  # fmt: skip

    def _end(self, k: State) -> None:
        self._outcome = k.outcome
        if not k.outcome:
            return
        tally, ledger = k.tally, k.ledger
        self._write(
            "the job has ended", level_of_end(k.outcome, k.why), event="job.ended", outcome=k.outcome,
            why=_first(k.why), rows_succeeded=tally.succeeded, rows_failed=tally.failed,
            rows_unreadable=unreadable_rows(k), calls=calls_of(k), attempts=ledger.attempts,
            cost_usd=ledger.known_nusd / 1e9 if k.terms.route.price is not None else None,
            elapsed_s=round(k.at_s - k.began_at_s, 3),
        )  # fmt: skip

    def _fail(self, k: State) -> None:
        now = dict(k.tally.failures)
        more = {str(kind): count - self._failures.get(kind, 0) for kind, count in now.items()}
        self._failures = now
        self._write("attempts failed", event="job.failures", failures={kind: n for kind, n in more.items() if n > 0})

    def _look_at_rows(self, k: State) -> None:
        for message, fields in self._rows.news(*_ended(k)):
            self._write(message, logging.WARNING, event="job.rows_failing", **fields)

    def _each(self, turn: events.Turn) -> None:
        k = self._k
        for batch in turn.batches:
            for event in batch:
                if isinstance(event, events.AttemptFailed):
                    failure = event.failure
                    trace = (self._sampled(k, event) if k is not None else None) or ("", "")
                    self._write(
                        "an attempt failed", logging.DEBUG, goal=event.goal, attempt=event.attempt,
                        call=f"{self._job}/{event.goal}/{event.sample}" if event.sample.isdecimal() else None,
                        kind=str(failure.kind), status=failure.status or None, branch=event.by,
                        elapsed_s=round(event.elapsed_s, 3), trace_id=trace[0], span_id=trace[1],
                    )  # fmt: skip


def _ended(k: State) -> tuple[int, dict[str, int]]:
    """Return the rows that have ended, and the failed ones by kind."""
    tally = k.tally
    return tally.succeeded + tally.failed, failed_rows(tally.failed_for_good, tally.rows_refused)


def _first(why: str) -> str:
    """Return the first word of the reason a job stopped, if the word is one of Cortex's own; the rest may quote a
    row or a reply."""
    word = why.partition(":")[0].partition(" ")[0]
    return word if word in _WORDS else "reason given by the program" if why else ""


_WORDS: Final = {*FailureKind, "deadline", "cancel", "drain", "condemned", "max_failed", "alike", "waits"}


class ClusterLog:
    """Cluster observer that writes the scheduler's log."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._limits: dict[str, int] = {}
        self._lost: dict[str, str] = {}

    def step(self, event: protocol.Event, out: list[protocol.Command]) -> None:
        """Log the decisions of one step of the scheduler."""
        for order in out:
            if isinstance(order, protocol.BreakerMoved):
                self._moved(order)
            elif isinstance(order, protocol.KillMember):
                _cluster.warning(**log_arguments("an actor is ended by force", event="actor.killed",
                    subject=order.subject,
                                        why=order.why))  # fmt: skip
            elif isinstance(order, protocol.StartMember):
                again = bool(self._state.members[order.name].past[0])
                _cluster.log(
                    logging.WARNING if again else logging.INFO,
                    **log_arguments("an actor is started" + (" again" if again else ""), event="actor.started",
                           subject=order.name),
                )  # fmt: skip
            elif isinstance(order, protocol.StopJob):
                message = "a job is stopped: its channel keeps dying"
                _cluster.error(**log_arguments(message, event="job.condemned", job=order.job))
        if isinstance(event, protocol.MemberDied):
            known = event.subject in self._state.members or event.subject.startswith("channel:")
            if known:
                message = "an actor is gone" if event.gone else "an actor does not report"
                _cluster.warning(**log_arguments(message, event="actor.lost", subject=event.subject, node=event.node))
        elif isinstance(event, protocol.PoolCapped):
            _cluster.info(**log_arguments("a pool was bounded by hand", event="pool.limited", who=event.who,
                pool=event.pool,
                                 caps=msgspec.to_builtins(event.caps)))  # fmt: skip
        elif isinstance(event, protocol.DrainMember):
            _cluster.info(**log_arguments("a drain of a node or an actor was requested", event="actor.drained",
                                 who=event.who,
                                 subject=event.subject))  # fmt: skip
        elif isinstance(event, protocol.MemberReported):
            self._cut()
        elif isinstance(event, protocol.NodesChanged):
            self._nodes()

    def _moved(self, order: protocol.BreakerMoved) -> None:
        again = order.old == "half-open"  # a failed probe: already logged when the breaker first opened
        level = logging.WARNING if order.new == "open" and not again else logging.INFO
        words = {"open": "a breaker opened", "closed": "a breaker closed"}.get(order.new, "a breaker is half open")
        _cluster.log(level, **log_arguments(words, event="breaker.moved", subject=order.subject, was=order.old))

    def _nodes(self) -> None:
        now = {name: lost.host for name, lost in self._state.lost.items()}
        for name, host in now.items() - self._lost.items():
            _cluster.warning(**log_arguments("a node is lost", event="node.lost", node=name, host=host))
        for name, host in self._lost.items() - now.items():
            _cluster.info(**log_arguments("a lost node is told no more", event="node.back", node=name, host=host))
        self._lost = now

    def _cut(self) -> None:
        for name, pool in self._state.pools.items():
            now, before = pool.allowed.concurrency, self._limits.get(name, 0)
            if now < before and not pool.caps.concurrency:
                _cluster.info(**log_arguments("a limit was cut", event="pool.cut", pool=name, limit=now, was=before))
            self._limits[name] = now


class LogTelemetry:
    """Part of a process's telemetry that writes logs."""

    def __init__(self, sampled: Sampled = nobody) -> None:
        self._sampled = sampled

    def watch(self, job: str, folder: str) -> JobLog:
        """Return an observer that logs this job."""
        return JobLog(job, sampled=self._sampled)

    def observe_cluster(self, state: SchedulerState) -> ClusterLog:
        """Return an observer that logs the cluster."""
        return ClusterLog(state)

    def take(self, settings: TelemetrySettings) -> None:
        """Do nothing: this part sends nothing."""

    def close(self) -> None:
        """Do nothing: this part queues nothing."""
