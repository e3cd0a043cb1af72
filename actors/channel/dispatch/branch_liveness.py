"""How a channel sees its branches: which can take calls, and what is lost with one, or goes to the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from actors.channel.dispatch.branch_links import Link, Links
from cortex.state import commands, events
from cortex.state.state import flight_key
from policies.failures.failure import Failure, FailureKind

Lost = Callable[[list[events.Event]], None]


class Standing:
    """Of one channel. ``lost`` hears of calls that died with their branches."""

    def __init__(self, links: Links, lost: Lost) -> None:
        self._links = links
        self._lost = lost
        self._where: dict[int, Link] = {}
        """Whose each call is that is under way."""

    def send(self, calls: Iterable[commands.Call]) -> bool:
        """Hand out calls."""
        raise NotImplementedError

    def _is_up(self, link: Link) -> None:
        link.up = True
        self._links.look(link)

    def _renewed(self, link: Link, incarnation: str) -> None:
        """This incarnation of the branch has spoken (none: the last one is dead): what an earlier one held is gone."""
        earlier = link.incarnation
        if incarnation == earlier or incarnation in link.past:
            return
        link.incarnation = incarnation
        if earlier:
            link.past.add(earlier)
            self._declare_lost(link, list(link.out), "its branch died")
        else:
            self._take_back(link)

    def _take_back(self, link: Link) -> None:
        """No incarnation of it was known, so what is on the way was meant for nobody, and nobody has taken it.

        It is still to be sent; nothing has failed.
        """
        link.queue, link.out = link.out | link.queue, {}
        if link.leaving:
            self._pass_on(link)

    def _down(self, link: Link) -> None:
        """It does not answer: what is not sent yet goes to the others."""
        link.up = False
        self._links.look(link)
        if self._links.others(link):
            self._pass_on(link)

    def _leave(self, link: Link) -> None:
        """It takes no more calls. Once it has brought back what it has, it is nobody to us."""
        link.leaving = True
        self._pass_on(link)
        self._look(link)

    def _pass_on(self, link: Link) -> None:
        if link.queue:
            queued, link.queue = list(link.queue.values()), {}
            for call in queued:
                self._where.pop(flight_key(call.goal, call.attempt), None)
            self.send(queued)

    def _look(self, link: Link) -> None:
        if link.leaving and not link.out and not link.queue:
            self._links.remove(link)
        else:
            self._links.look(link)

    def _declare_lost(self, link: Link, keys: list[int], why: str) -> None:
        lost: list[events.Event] = []
        for key in keys:
            call = link.out.pop(key)
            failure = Failure(FailureKind.LOST, why)
            lost.append(events.Broke(call.goal, call.sample, call.attempt, failure, by=link.name))
            self._where.pop(key, None)
        self._look(link)
        if lost:
            self._lost(lost)
