"""Epoch fencing: a channel's epoch is above all epochs that branches and the scheduler have seen of its job.

Branches and the scheduler know a job by its name. A name may return with another journal, whose epochs begin at 1: from
another state folder, or after the first journal was removed or restored. Its channel would then count as an old one,
and its messages as repeated. So the epoch begins above those that were seen. A channel whose own journal has another
writer by now stays fenced.
"""

from __future__ import annotations

from actors.channel.dispatch.dispatcher import Dispatch
from actors.journal.journal import Fenced, Journal
from actors.ports.runtime import Peer


async def met(dispatch: Dispatch, names: tuple[str, ...], source: Journal, cortex: Peer) -> tuple[tuple[int, int], ...]:
    """Ask the branches for the attempts of the job that they hold, and return these, after raising the journal's epoch
    if that is needed.

    Raises ``Fenced`` if another channel has taken an epoch of this journal meanwhile.
    """
    _above(source, await cortex.ask("newest_epoch", source.job))
    held = await dispatch.meet(names, source.epoch)
    if dispatch.acknowledged >= source.epoch:
        _above(source, dispatch.acknowledged)
        held = await dispatch.meet(names, source.epoch)
    return held


def _above(source: Journal, number: int) -> None:
    """Take an epoch above this number, unless the epoch is above it already."""
    if number < source.epoch:
        return
    if source.newest_epoch() != source.epoch:
        raise Fenced(f"{source.job}: another run has taken the job over")
    source.take_epoch(source.meta("owner") or b"", number + 1)
