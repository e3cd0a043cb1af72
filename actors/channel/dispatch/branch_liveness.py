"""Liveness of a job's branches as its channel sees them: the branches that can take calls, and the calls lost with one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from actors.channel.dispatch.branch_links import BranchLink, BranchLinks
from cortex.state import commands, events
from cortex.state.state import flight_key
from policies.failures.failure import Failure, FailureKind

Lost = Callable[[list[events.Event]], None]


class BranchLiveness:
    """Transitions of the links of one channel: up, down, another incarnation, leaving.

    ``lost`` takes the events of calls that died with their branch. ``send`` hands out again calls that a branch was
    given and has not been sent.
    """

    def __init__(self, links: BranchLinks, lost: Lost, send: Callable[[Iterable[commands.Call]], object]) -> None:
        self._links = links
        self._lost = lost
        self._send = send
        self.where: dict[int, BranchLink] = {}
        """Link that each call under way was given to, by ``flight_key``."""

    def up(self, link: BranchLink) -> None:
        """Record that the branch has answered."""
        link.up = True
        self._links.look(link)

    def renewed(self, link: BranchLink, asked: str, incarnation: str) -> None:
        """Record which incarnation of the branch has answered: calls that an earlier incarnation held are lost.

        ``asked``: the incarnation that was known when the question was sent. Where another has answered since, this
        answer may be older than that one, and changes nothing: the next answer tells. An empty ``incarnation``: the
        known one is dead, and no other has answered yet.
        """
        earlier = link.incarnation
        if incarnation == earlier or earlier != asked or incarnation in link.past:
            return
        link.incarnation = incarnation
        link.stop_waiting()
        if earlier:
            link.past.add(earlier)
            self.declare_lost(link, list(link.out), "its branch died")
        else:
            self.take_back(link)

    def take_back(self, link: BranchLink) -> None:
        """Queue again the calls that are on the way to a branch of which no incarnation was known.

        Their message was meant for no incarnation, so no branch has taken it: nothing has failed.
        """
        link.queue, link.out = link.out | link.queue, {}
        if link.leaving:
            self._pass_on(link)

    def down(self, link: BranchLink) -> None:
        """Record that the branch does not answer. Calls that it was not sent yet go to other branches."""
        link.up = False
        self._links.look(link)
        if self._links.others(link):
            self._pass_on(link)

    def leave(self, link: BranchLink) -> None:
        """Record that the branch takes no more calls. Its link is removed once it has answered all that it has."""
        link.leaving = True
        self._pass_on(link)
        self.look(link)

    def look(self, link: BranchLink) -> None:
        """Put the link where its load belongs now, or remove the link of a leaving branch that has no calls left."""
        if link.leaving and not link.out and not link.queue:
            self._links.remove(link)
        else:
            self._links.look(link)

    def declare_lost(self, link: BranchLink, keys: list[int], why: str) -> None:
        """End these calls of the branch (``flight_key``) as lost; ``why`` is the message of their failure."""
        lost: list[events.Event] = []
        for key in keys:
            call = link.out.pop(key)
            failure = Failure(FailureKind.LOST, why)
            lost.append(events.AttemptFailed(call.goal, call.sample, call.attempt, failure, by=link.name))
            self.where.pop(key, None)
        self.look(link)
        if lost:
            self._lost(lost)

    def _pass_on(self, link: BranchLink) -> None:
        if link.queue:
            queued, link.queue = list(link.queue.values()), {}
            for call in queued:
                self.where.pop(flight_key(call.goal, call.attempt), None)
            self._send(queued)
