"""Questions between actors that are never answered, as those to a killed actor may be on a real Ray."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from ray import exceptions

from actors.channel.leases.lease import AGAIN_S, Lease
from actors.cluster.ray_peer import RayPeer
from actors.messaging.answer_bounds import (
    ANSWER_S,
    BOUNDED_BY_ASKER,
    BOUNDS_S,
    LOOK_S,
    ON_ITS_WAY_S,
    SERVED,
    WAITS,
    bound_s,
    in_time,
)
from actors.messaging.long_questions import ask_process
from actors.ports.runtime import PeerGone, PeerUnavailable
from actors.runtime.ray_actor import METHODS, ROLES, methods
from cortex.scheduler.state import LEASE_S
from cortex.state.state import State
from cortex.values.limits import JobTerms, Route
from tests.edge.cluster.test_ray_peer import Runtime
from tests.edge.support.virtual_clock import VirtualRuntime, virtually

ALL = sorted({method for role in METHODS for method in methods(role)})
ARGUMENTS = ("a", "b", "c", "d", "e", 7.0)


class Silent:
    """An actor's handle of Ray: no call of a method ends."""

    def __getattr__(self, method: str) -> Any:
        return self

    async def remote(self, letter: bytes = b"") -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize("method", [name for name in ALL if name not in BOUNDED_BY_ASKER])
def test_a_question_that_is_never_answered_ends_as_unavailable(method: str) -> None:
    async def asked() -> float:
        peer = RayPeer("channel:j", Runtime(Silent()), exceptions)  # type: ignore[arg-type]
        with pytest.raises(PeerUnavailable, match=f"channel:j has not answered '{method}' for"):
            await peer.ask(method, *ARGUMENTS)
        return asyncio.get_running_loop().time()

    assert virtually(asked()) == bound_s(method, ARGUMENTS)


def test_only_questions_of_the_path_of_a_call_are_left_to_their_askers() -> None:
    assert set(BOUNDED_BY_ASKER) == {"abandon", "beat", "deliver", "on_disk", "work"}
    assert (BOUNDS_S.keys() | WAITS.keys() | BOUNDED_BY_ASKER) <= set(ALL)


@pytest.mark.parametrize(("method", "place"), sorted(WAITS.items()))
def test_a_question_that_may_wait_names_its_seconds_where_the_bound_reads_them(method: str, place: int) -> None:
    for role in (role for role in METHODS if method in METHODS[role]):
        named = list(inspect.signature(getattr(ROLES[role], method)).parameters)[1:]
        assert named[place] in ("wait_s", "timeout_s")
    assert bound_s(method, ARGUMENTS) == ANSWER_S + 7.0


def test_an_answer_that_takes_the_code_of_its_author_minutes_is_made_once() -> None:
    made: list[str] = []

    async def makes(method: str, args: Any) -> Any:
        if method == "serving":
            return tuple(made)
        made.append(method)
        await asyncio.sleep(ANSWER_S + 300)
        return b"42"

    assert virtually(in_time("channel:j", makes, "answer", ())) == b"42" and made == ["answer"]


class Answering:
    """Actor that answers a long question after ``takes_s``. ``serving``: what it tells of its questions from
    ``since_s`` on; before, it tells that it is answering this one.
    """

    def __init__(self, takes_s: float, since_s: float, serving: Any) -> None:
        self._takes_s, self._since_s, self._serving = takes_s, since_s, serving
        self._asked = ""

    async def ask(self, method: str, args: Any) -> Any:
        if method != "serving":
            self._asked = method
            await asyncio.sleep(self._takes_s)
            return "whole"
        if asyncio.get_running_loop().time() < self._since_s:
            return (self._asked,)
        if isinstance(self._serving, Exception):
            raise self._serving
        if self._serving is None:
            await asyncio.Event().wait()
        return self._serving


def _waited_s(method: str, actor: Answering) -> float:
    """Return the seconds after which the question was given up."""

    async def asked() -> float:
        with pytest.raises(PeerUnavailable, match=f"channel:j has not answered '{method}' for"):
            await in_time("channel:j", actor.ask, method, ARGUMENTS)
        return asyncio.get_running_loop().time()

    return virtually(asked())


def test_every_question_that_may_take_minutes_is_looked_after() -> None:
    assert {method for method in BOUNDS_S if BOUNDS_S[method] > ANSWER_S} == SERVED | {"batches"}


@pytest.mark.parametrize("method", sorted(SERVED))
@pytest.mark.parametrize("serving", [(), ("other",), PeerGone("channel:j")])
def test_a_question_of_which_the_actor_knows_nothing_any_more_is_given_up(method: str, serving: Any) -> None:
    for since_s in (0.0, 50.0):
        waited_s = _waited_s(method, Answering(1e9, since_s, serving))
        assert since_s <= waited_s <= since_s + LOOK_S + ON_ITS_WAY_S


@pytest.mark.parametrize("serving", [None, PeerUnavailable("channel:j"), AttributeError("serving"), ("start",)])
def test_a_question_to_an_actor_that_is_busy_or_away_is_waited_for(serving: Any) -> None:
    """A channel that replays a long journal answers nothing meanwhile."""
    assert virtually(in_time("channel:j", Answering(400.0, 0.0, serving).ask, "start", ())) == "whole"
    assert _waited_s("start", Answering(1e9, 0.0, serving)) == BOUNDS_S["start"]


def test_an_answer_that_is_on_its_way_arrives() -> None:
    assert virtually(in_time("channel:j", Answering(LOOK_S + 4.0, 0.0, ()).ask, "start", ())) == "whole"


async def test_an_error_of_the_actor_itself_stays_what_it_is() -> None:
    async def raises(method: str, args: Any) -> Any:
        raise TimeoutError("of a database")

    with pytest.raises(TimeoutError, match="of a database"):
        await in_time("channel:j", raises, "feed", ())


def test_a_channel_claims_again_after_a_claim_that_was_never_answered() -> None:
    async def played() -> list[float]:
        runtime, clock = VirtualRuntime(), asyncio.get_running_loop().time
        real, claims = runtime.peer("cortex"), []

        class Peer:
            name = "cortex"

            async def ask(self, method: str, *args: Any) -> Any:
                return await in_time(self.name, self._asked, method, args)

            async def _asked(self, method: str, args: Any) -> Any:
                if method == "join":
                    claims.append(clock())
                    if len(claims) == 1:
                        await asyncio.Event().wait()
                return await real.ask(method, *args)

        runtime.peer = lambda name: Peer()  # type: ignore[assignment,return-value,method-assign]
        route = Route(endpoint="e", credential="c", model="m")
        k = State(terms=JobTerms(job="j", program="p", params_json=b"{}", fingerprint="f", route=route))
        task = asyncio.create_task(Lease("j", runtime, lambda: k, lambda batch: None).hold())
        await asyncio.sleep(LEASE_S + 3 * AGAIN_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runtime.close()
        return claims

    first, second, *_ = virtually(played())
    assert LEASE_S <= second - first <= LEASE_S + AGAIN_S + 0.1


class Process:
    """Runtime with one other actor, which ends ``ends_s`` after a question that it never answers. ``found``: what a
    ``ping`` of its name finds afterwards.
    """

    def __init__(self, ends_s: float, found: str | Exception) -> None:
        self._ends_s, self._found, self.pings = ends_s, found, 0

    def peer(self, name: str) -> Any:
        return self

    async def ask(self, method: str, *args: Any) -> Any:
        if method == "ping":
            self.pings += 1
            found = self._found if asyncio.get_running_loop().time() >= self._ends_s else "worker:0.1"
            if isinstance(found, Exception):
                raise found
            return found, "node"
        await asyncio.sleep(*args)
        return "whole"


@pytest.mark.parametrize("known", ["worker:0.1", ""])
@pytest.mark.parametrize("found", ["worker:0.2", PeerGone("worker:0")])
def test_a_long_question_ends_with_the_process_that_was_asked(found: str | Exception, known: str) -> None:
    async def asked() -> float:
        with pytest.raises(PeerUnavailable, match="the process of worker:0 that was asked 'run' has ended"):
            await ask_process(Process(100.0, found), "worker:0", known, "run", 3_600.0)  # type: ignore[arg-type]
        return asyncio.get_running_loop().time()

    assert 100.0 <= virtually(asked()) <= 100.0 + LOOK_S


@pytest.mark.parametrize("found", ["worker:0.1", PeerUnavailable("worker:0")])
def test_a_process_that_lives_or_does_not_answer_is_waited_for(found: str | Exception) -> None:
    process = Process(0.0, found)
    assert virtually(ask_process(process, "worker:0", "worker:0.1", "run", 100.0)) == "whole"  # type: ignore[arg-type]
    assert process.pings == 6


def test_a_process_that_is_not_known_is_asked_for_its_name_first() -> None:
    """One that hangs may be another when it answers, and one may end before the first look at it."""

    async def asked() -> float:
        with pytest.raises(PeerUnavailable):
            process = Process(0.0, PeerUnavailable("worker:0"))
            await ask_process(process, "worker:0", "", "run", 3_600.0)  # type: ignore[arg-type]
        assert asyncio.get_running_loop().time() == 0.0, "nothing was asked"
        with pytest.raises(PeerUnavailable):
            await ask_process(Process(0.1, "worker:0.2"), "worker:0", "", "run", 3_600.0)  # type: ignore[arg-type]
        return asyncio.get_running_loop().time()

    assert virtually(asked()) <= LOOK_S


@pytest.mark.parametrize(("known", "pings"), [("", 1), ("worker:0.2", 0)])
def test_a_short_question_costs_no_look(known: str, pings: int) -> None:
    process = Process(0.0, "worker:0.2")
    assert virtually(ask_process(process, "worker:0", known, "run", 0.5)) == "whole"  # type: ignore[arg-type]
    assert process.pings == pings
