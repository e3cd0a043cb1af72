"""A channel's epoch is above all that branches and the cortex have heard of a job of its name.

They know jobs by name, and a name may come a second time from another journal, whose epochs begin at one again: of
another state folder, or after the first was removed or restored. To them its channel would be one that is over, and its
messages come again. So it begins above what they have heard. A channel that is over indeed, since its own journal has
another writer by now, stays so.
"""

from __future__ import annotations

from actors.channel.dispatch.dispatcher import Dispatch
from actors.journal.journal import Fenced, Journal
from actors.ports.runtime import Peer


async def met(dispatch: Dispatch, names: tuple[str, ...], source: Journal, cortex: Peer) -> tuple[tuple[int, int], ...]:
    """Get to know the branches; what they hold of the job. The journal's epoch, which has just been taken, may be
    another one afterwards. Raises ``Fenced`` where somebody else has taken one meanwhile."""
    _above(source, await cortex.ask("newest_epoch", source.job))
    held = await dispatch.meet(names, source.epoch)
    if dispatch.acknowledged >= source.epoch:
        _above(source, dispatch.acknowledged)
        held = await dispatch.meet(names, source.epoch)
    return held


def _above(source: Journal, number: int) -> None:
    """Take an epoch that is higher than what was heard, if ours is not."""
    if number < source.epoch:
        return
    if source.newest_epoch() != source.epoch:
        raise Fenced(f"{source.job}: another run has taken the job over")
    source.take_epoch(source.meta("owner") or b"", number + 1)
