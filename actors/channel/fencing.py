"""Epoch fencing: a channel's epoch is above all epochs that others have seen of its job.

Branches, the scheduler and a shard's parent know a job by its name. A name may return with another journal, whose
epochs begin at 1: from another state folder, or after the first journal was removed, was restored or has lost its end
with the power. Its channel would then count as an old one, and its messages as repeated. So the epoch begins above
those that were seen. A channel whose own journal has another writer by now stays fenced. A branch that is silent at
that time may know of an epoch that is not below: the channel begins anew once it hears of that.

A channel learns from its next turn that it is fenced. One that only waits (for a message batch, a person, a child job
or a long call) takes no turn, and its clients would wait with it; ``watch`` looks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from actors.channel.dispatch.dispatcher import MEET_S, Dispatch
from actors.channel.leases.parent import newest_reported
from actors.history.catalog import terms_in
from actors.jobs.opening import Opening
from actors.journal.errors import LostEnd
from actors.journal.journal import DatabaseUnreachable, Journal
from actors.ports.runtime import PeerGone, Runtime
from cortex.journal.codec import decode_account

LOOK_S = 60.0
"""Seconds between two looks at the journal of a channel that takes no turns. Each costs a read of one row."""


async def reported_of(source: Journal, runtime: Runtime, opening: Opening | None) -> int:
    """Return the newest epoch of this journal's job that its parent has a report of; 0 for a job that is no shard.

    To be asked before anything is written: while the parent is away, the shard does not begin. One that has ended
    reports nothing new, and needs no parent. Raises ``PeerUnavailable`` or ``PeerGone``; and ``LostEnd`` for a shard
    that is restarted, has not ended by this journal, and whose parent is complete: the journal has lost its end. It
    would pay for rows that its job has, and lower the counts there.
    """
    terms = opening.terms if opening is not None else terms_in(source)
    if terms is None or not terms.shard:
        return 0
    account = source.account(source.seq)
    ended = bool(account) and bool(decode_account(account).outcome)
    try:
        epoch, complete = await newest_reported(runtime, source.job)
    except PeerGone:
        if ended:
            return 0
        raise
    if complete and opening is None and not ended:
        raise LostEnd(f"the journal of {source.job} has lost its end, as by a power cut, and its job is complete")
    return epoch


async def met(
    dispatch: Dispatch, names: tuple[str, ...], source: Journal, runtime: Runtime, reported: int
) -> tuple[tuple[int, int], ...]:  # fmt: skip
    """Ask the branches for the attempts of the job that they hold, and return these, after raising the journal's epoch
    if that is needed. ``reported``: newest epoch that a shard's parent knows, which drops reports of earlier ones.

    Raises ``Fenced`` if another channel has taken an epoch of this journal meanwhile.
    """
    _above(source, max(reported, await runtime.peer("cortex").ask("newest_epoch", source.job)))
    held = await dispatch.meet(names, source.epoch)
    if dispatch.acknowledged >= source.epoch:
        _above(source, dispatch.acknowledged)
        held = await dispatch.meet(names, source.epoch)
    return held


async def watch(source: Journal, dispatch: Dispatch, over: Callable[[], bool], take_turn: Callable[[], None]) -> None:
    """Ask for a turn once the journal of a waiting channel has another writer, or has lost its name, until ``over``.

    The turn then fails, and the channel stops as after any other turn that fails. A channel hears of the loss at most
    ``2 * LOOK_S`` after its last turn, or ``LOOK_S`` after the loss if that is later. A database that does not answer
    proves nothing. A channel that has no other writer, and which a branch takes for an old one, begins anew.
    """
    while not over():
        seq = source.seq
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await dispatch.outdated.wait()
        outdated = dispatch.outdated.is_set()
        if over() or (source.seq != seq and not outdated):
            continue
        try:
            if source.remote:
                await asyncio.to_thread(source.see_writable)
            else:
                source.see_writable()
            if outdated:
                dispatch.begin_anew()
        except DatabaseUnreachable:
            pass
        except Exception:  # StoreError most often: the turn tells
            take_turn()
        if outdated:
            await asyncio.sleep(MEET_S)  # the message may be lost


def _above(source: Journal, number: int) -> None:
    """Take an epoch above this number, unless the epoch is above it already."""
    if number < source.epoch:
        return
    source.see_own()
    source.take_epoch(source.meta("owner") or b"", number + 1)
