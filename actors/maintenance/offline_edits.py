"""Events for the journal of a job that no process runs: one turn, without a channel and without calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice, takewhile
from typing import Any

import msgspec

from actors.channel.job_clock import clock_of
from actors.common import boot_clock
from actors.common.process_owner import owner_record, this_owner
from actors.history import final_state
from actors.history.catalog import as_it_was, in_use_message, last_state
from actors.history.lost_shards import gone_back
from actors.history.redaction import JournalRedaction
from actors.history.result_history import lines, shard_names
from actors.history.results import ResultProjection
from actors.journal.journal import JobHeld, Journal, StateFolder, StoreError
from actors.journal.state_folder import advised
from actors.programs import loader
from cortex.goals import shards
from cortex.journal import codec
from cortex.loop.step import step
from cortex.state import events
from cortex.state.commands import EmitResult
from cortex.state.program import Program
from cortex.state.state import State
from cortex.values.limits import JobTerms
from policies.failures.failure import Failure, FailureKind


def amend(
    folder: StateFolder, job: str, batch_of: Callable[[int, State], list[events.Event]], goes_on: bool = False
) -> State:
    """Take the job's epoch, append the events of ``batch_of(epoch, k)`` as a turn, and return K. Raises
    ``StoreError``.

    ``goes_on``: the owner of its latest run remains, so that whatever goes on with the job by itself still does.
    """
    try:
        with folder.hold(job):
            source = folder.journal(job)
            try:
                return _amended(source, batch_of, goes_on)
            finally:
                source.close()
    except JobHeld:
        raise StoreError(in_use_message(folder, job)) from None


def _amended(source: Journal, batch_of: Callable[[int, State], list[events.Event]], goes_on: bool) -> State:
    idle_s = source.idle_s()
    owner = source.meta("owner") if goes_on else None
    epoch = source.take_epoch(owner or owner_record(this_owner("inline")))
    ended = final_state.read(source)
    if ended is not None and final_state.stands(ended.k.outcome, batch := batch_of(epoch, ended.k)):
        turn = _turn(source, idle_s, ended.k, batch)
        final_state.fold(ended.k, turn)
        _append(source, ended.k, turn)
        return ended.k
    snapshot = source.latest_snapshot()
    k = codec.decode_state(snapshot[1]) if snapshot else None
    turns = (turn for _, turn in source.turns(snapshot[0] if snapshot else source.opened_at()))
    k = codec.replay(k, turns, loaded)
    codec.put_right(k, source.account(source.seq))
    turn, program = _turn(source, idle_s, k, batch_of(epoch, k)), loaded(k.terms)
    step(k, program, turn)
    seq = _append(source, k, turn)
    JournalRedaction(source, k).look(k, seq)
    if k.outcome and final_state.wanted(k):
        final_state.write(source, k, program, seq, ended.lines if ended is not None else None)
    return k


class _Machine:
    """Clocks of this machine, in place of a runtime's."""

    now_s = staticmethod(time.time)
    steady_s = staticmethod(boot_clock.steady_s)
    boot_id = staticmethod(boot_clock.boot_id)


def _turn(source: Journal, idle_s: float | None, k: State, batch: list[events.Event]) -> events.Turn:
    """Return the turn at the job's own time, as a channel would take it: the clock of this machine may be any."""
    clock = clock_of(_Machine(), source, (k.at_s, k.ahead_s), idle_s)
    at_s = max(k.at_s, clock.now_s())
    return events.Turn(at_s, (tuple(batch),), b"", clock.ahead_s(at_s))


def _append(source: Journal, k: State, turn: events.Turn) -> int:
    batches = map(codec.encode_batch, turn.batches)
    return source.append([codec.encode_turn(turn.at_s, batches, codec.encode_account(k), ahead_s=turn.ahead_s)])


def loaded(terms: JobTerms) -> Program:
    """Return the program of a job."""
    return loader.load(terms.program, terms.params_json)


def cancel(folder: StateFolder, job: str, who: str) -> State:
    """End for good a job that no process runs, its shards first. Raises ``StoreError``."""
    reports = {}
    for name in shards_in(folder, job):
        if folder.has(name):
            reports[int(name.rpartition("~")[2])] = shards.report(cancel(folder, name, who), 1)

    def cancelling(epoch: int, k: State) -> list[events.Event]:
        gone = Failure(FailureKind.CANCELLED, f"cancelled by {who}", sent=False)
        tasks = {task.goal: task.attempt for task in k.errands.values() if task.is_shard}
        home = [events.ChildJobEnded(*each, None, failure=gone, report=reports.get(each[0])) for each in tasks.items()]
        parts = [events.ShardReported(goal, report) for goal, report in reports.items() if goal not in tasks]
        return [events.Rejoined(epoch), events.Stopped(who, "cancel"), *home, *parts]

    return amend(folder, job, cancelling)


def drain(folder: StateFolder, job: str, who: str) -> State:
    """Let a job rest whose channel is gone, its shards first: the next channel would know nothing of an order that
    stands in no journal. The epoch is taken, so a channel that lives all the same is fenced. Raises ``StoreError``.

    A job whose shards, other child jobs or tool runs are under way gets no outcome by this, since only a channel can
    look at them. Message batches keep no job from its outcome: they stay with the provider. Child jobs that are no
    shards are not drained: they begin again only with the job itself.
    """
    for name in shards_in(folder, job):
        if folder.has(name) and not last_state(folder, name).outcome:
            drain(folder, name, who)

    def draining(epoch: int, k: State) -> list[events.Event]:
        return [events.Rejoined(epoch), events.Stopped(who, "drain")]

    return amend(folder, job, draining)


def shards_in(folder: StateFolder, job: str) -> list[str]:
    """Return the names of a job's shards; empty if it has none."""
    with closing(folder.journal(job)) as source:
        return shard_names(source, loaded)


def _parts(folder: StateFolder, job: str) -> tuple[int, ...]:
    """Return the number of results of each shard."""
    return tuple(last_state(folder, name).emitted if folder.has(name) else 0 for name in shards_in(folder, job))


def set_limits(folder: StateFolder, job: str, who: str, changed: dict[str, Any]) -> State:
    """Change limits of a job that no process runs, given as values of their fields. Raises ``StoreError``."""

    def setting(epoch: int, k: State) -> list[events.Event]:
        limits = msgspec.structs.replace(k.terms.limits, **changed)
        return [events.Rejoined(epoch), events.LimitsSet(who, limits)]

    return amend(folder, job, setting, goes_on=True)


def answer(folder: StateFolder, job: str, who: str, answers: dict[str, Any]) -> State:
    """Give answers to a job that no process runs. Raises ``StoreError``."""

    def answering(epoch: int, k: State) -> list[events.Event]:
        return [events.Rejoined(epoch), *(events.AnswerGiven(who, name, value) for name, value in answers.items())]

    return amend(folder, job, answering, goes_on=True)


def copy_results(
    folder: StateFolder, job: str, sink: Any, rows: int = 0, size_bytes: int = 0, own: bool = False
) -> int:
    """Write the results in a job's journal into a sink that already holds ``rows`` of them. Return the number of
    results.

    ``own``: the sink is the job's own output, so the journal records how much is written. Raises ``StoreError``, and
    leaves the sink as it is, if shards of a complete job have lost results since: the next run asks these rows again.
    """
    if own:
        _refuse_lost(folder, job)
    reader: ResultProjection | None = None
    try:
        index = sink.open(rows, size_bytes, own)
        if index > 0 and (parts := _parts(folder, job)) and index < sum(parts):
            index = sink.open(0, 0, own)  # unknown which results of which shard the file holds
        reader = ResultProjection(folder.journal(job), as_it_was, index, at_rest=True)
        while some := reader.read():
            sink.write([value for _, value in some])
        written = sink.flush()
    except BaseException:
        sink.abandon()
        raise
    finally:
        if reader is not None:
            reader.close()
        sink.close()
    if own and written != (rows, size_bytes):
        checksum = getattr(sink, "checksum", -1)
        amend(folder, job, lambda epoch, k: [
            events.ResultsWritten(written[0], written[1], _parts(folder, job), checksum)
        ])
    return int(written[0])


def _refuse_lost(folder: StateFolder, job: str) -> None:
    k = last_state(folder, job)
    if k.outcome != "complete" or not k.shards or not k.terms.keeps_text or not (lost := gone_back(folder, job, k)):
        return
    parts = (0,) * len(k.shards)
    amend(folder, job, lambda epoch, k: [events.ResultsWritten(0, 0, parts)])  # the job is not whole any more
    names = ", ".join(f"{job}~{goal}" for goal in lost)
    raise StoreError(
        f"the results file is incomplete, and the journals of {names} have lost their end, as by a power cut. To ask "
        f"their rows again: {advised(folder, 'resume', job)}"
    )


def see_changes(folder: StateFolder, job: str, sink: Any) -> None:
    """Raise ``SinkError`` if the table of a finished job is no longer what its results make (``TableSink.compare``)."""
    with closing(ResultProjection(folder.journal(job), as_it_was, sink.open(0, 0, True), at_rest=True)) as reader:
        try:
            while some := reader.read():
                sink.write([value for _, value in some])
            sink.compare()
        finally:
            sink.abandon()


def copy_some(
    folder: StateFolder, job: str, sink: Any, pick: Callable[[Iterator[EmitResult]], Iterator[EmitResult]],
    together: int = 1_000
) -> int:  # fmt: skip
    """Write the results that ``pick`` selects into a sink. Return their number."""
    source = folder.journal(job)
    try:
        sink.open(0, 0, False)
        read = lines(source, as_it_was, at_rest=True)
        found = pick(takewhile(lambda line: line is not None, read))  # type: ignore[arg-type]
        while some := [line.value for line in islice(found, together)]:
            sink.write(some)
        return int(sink.flush()[0])
    except BaseException:
        sink.abandon()
        raise
    finally:
        source.close()
        sink.close()
