"""What came along with the answers of branches (``actors.branch.reply_outbox``): it is for the next turn, and a branch
keeps it until it is told that it is on disk, with the next message or a moment later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.channel.dispatch.branch_links import BranchLink
from actors.messaging.inbox import InboxEntry
from actors.messaging.payload import decoded
from cortex.state import events
from cortex.state.state import flight_key

WAITS_MAX = 1_024
"""Calls of a message whose answer may wait for what becomes of them, where calls are quick: a message of its own would
cost both sides as much as forty calls. Of more, some are done while others travel."""
TELL_S = 0.05
"""How long a branch that is sent nothing keeps what is on disk; twice as long at the most."""


class PiggybackedResults:
    """Of one channel. ``bring`` puts an entry into its inbox."""

    def __init__(self, job: str, bring: Callable[[InboxEntry], None]) -> None:
        self._job = job
        self._bring = bring
        self._ack_timer: asyncio.TimerHandle | None = None
        self._owed: dict[BranchLink, None] = {}
        """Branches that may not have heard what is on disk, those among them that have left: until they have, they keep
        it, and do not end."""
        self.epoch = 0

    def sent(self, link: BranchLink, calls: int) -> tuple[int, bool]:
        """What a message of so many calls says besides: up to which one all is on disk, and whether its answer may wait
        for what becomes of them."""
        link.acknowledged = link.on_disk
        return link.acknowledged, calls <= WAITS_MAX

    def take_answer(self, link: BranchLink, number: int, answer: str | tuple[str, bytes]) -> str:
        """The incarnation that has answered this message. What came along is for the next turn."""
        if isinstance(answer, str):
            return answer
        text, blob = answer
        batch = decoded(blob)
        last = batch[-1]
        assert isinstance(last, (events.Answered, events.AttemptFailed)), "a branch tells of attempts"
        link.brought = number, flight_key(last.goal, last.attempt)
        self._bring(InboxEntry(blob, len(batch), None, batch))
        return text

    def on_disk(self, link: BranchLink) -> None:
        """What came along last from this branch is on disk."""
        link.on_disk = link.brought[0]
        self._owed[link] = None
        if self._ack_timer is None:
            self._ack_soon()

    def _ack_soon(self) -> None:
        self._ack_timer = asyncio.get_running_loop().call_later(TELL_S, self._send_acks)

    def _send_acks(self) -> None:
        """Those that were sent nothing for a while, and of which nothing came, hear it now: a busy one hears it with
        its next message."""
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
        """Nobody is told any more."""
        if self._ack_timer is not None:
            self._ack_timer.cancel()
