"""Results that arrive with a branch's answer to a message of calls (``actors.branch.reply_outbox``).

They belong to the next turn. A branch keeps them until it receives the acknowledgement that they are on disk, with the
next message or a moment later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.channel.dispatch.branch_links import BranchLink
from actors.messaging.inbox import InboxEntry
from actors.messaging.payload import decoded
from cortex.state import events
from cortex.state.state import flight_key

WAITS_MAX = 1_024
"""Calls of a message whose answer may wait for their results, where calls are quick: a message for the results alone
would cost both sides as much as forty calls. Of more calls, some end while others travel."""
ACK_S = 0.05
"""Seconds for which a branch that is sent nothing keeps results that are on disk; at most twice as long."""


class PiggybackedResults:
    """Results that answers bring to one channel. ``bring`` puts an entry into its inbox."""

    def __init__(self, job: str, bring: Callable[[InboxEntry], None]) -> None:
        self._job = job
        self._bring = bring
        self._ack_timer: asyncio.TimerHandle | None = None
        self._owed: dict[BranchLink, None] = {}
        """Branches that may not know what is on disk, those among them that have left included: they keep it, and do
        not end, until they know."""
        self.epoch = 0

    def sent(self, link: BranchLink, calls: int) -> tuple[int, bool]:
        """Return the acknowledgement in a message of this many calls, and whether its answer may wait for results.

        The acknowledgement is the number of the last message whose results are on disk.
        """
        link.acknowledged = link.on_disk
        return link.acknowledged, calls <= WAITS_MAX

    def take_answer(self, link: BranchLink, number: int, answer: str | tuple[str, bytes]) -> str:
        """Return the incarnation that has answered this message, and put the results that came along into the inbox."""
        if isinstance(answer, str):
            return answer
        text, blob = answer
        batch = decoded(blob)
        last = batch[-1]
        assert isinstance(last, (events.Answered, events.AttemptFailed, events.GivenBack)), "a branch tells of calls"
        link.brought = number, flight_key(last.goal, last.attempt)
        self._bring(InboxEntry(blob, len(batch), None, batch))
        return text

    def on_disk(self, link: BranchLink) -> None:
        """Record that the results that came last from this branch are on disk."""
        link.on_disk = link.brought[0]
        self._owed[link] = None
        if self._ack_timer is None:
            self._ack_soon()

    def _ack_soon(self) -> None:
        self._ack_timer = asyncio.get_running_loop().call_later(ACK_S, self._send_acks)

    def _send_acks(self) -> None:
        """Send the acknowledgement to branches that were sent no message and sent no results for a while. Other
        branches get it with the next message.
        """
        self._ack_timer = None
        owed, self._owed = self._owed, {}
        for link in owed:
            if link.acknowledged == link.on_disk:
                continue
            if link.unacknowledged == link.on_disk:
                link.acknowledged = link.on_disk
                link.peer.tell("on_disk", self._job, self.epoch, link.acknowledged)
            else:
                link.unacknowledged = link.on_disk
                self._owed[link] = None
        if self._owed:
            self._ack_soon()

    def close(self) -> None:
        """Stop sending acknowledgements."""
        if self._ack_timer is not None:
            self._ack_timer.cancel()
