"""A lease is counted by who holds it, outlives the channel's and the cortex's deaths, and is never granted twice."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from actors.channel.leases.lease import AGAIN_S, PAUSE_MAX_S, PAUSE_S, RAN_OUT, RENEW_S
from actors.scheduler.actor import Cortex
from cortex.scheduler.protocol import SchedulerStarted
from cortex.scheduler.reports import ProgressReport, RouteSignals
from cortex.scheduler.state import LEASE_S, SchedulerSettings
from cortex.values.limits import Route
from policies.failures.failure import Failure, FailureKind
from policies.limits.limit import LimitPolicy, PoolCaps
from tests.edge.support.lease_fixture import ROUTE, Answers, World, act, grant

# -- nodes -------------------------------------------------------------------------------------------------------------


def test_whoever_asks_an_idle_cortex_hears_which_nodes_live_by_now() -> None:
    """A job may be through before the cluster has given a node up; and after it nobody looks."""

    async def play(world: World) -> None:
        cortex = world.start()
        world.living = ("a", "b")
        assert set((await cortex.status())["nodes"]) == {"a", "b"}
        world.living = ("a",)
        assert set((await cortex.status())["nodes"]) == {"a"}
        world.living = None
        assert set((await cortex.status())["nodes"]) == {"a"}, "what was known stands"

    act(play)


def test_a_node_of_the_status_has_the_name_of_its_pod() -> None:
    async def play(world: World) -> None:
        cortex = world.start()
        world.living = ("a", "b")
        hosts = {name: node["host"] for name, node in (await cortex.status())["nodes"].items()}
        assert hosts == {"a": "pod-a", "b": "pod-b"}

    act(play)


def test_a_lost_node_of_the_status_has_its_pod_and_its_time_and_one_that_was_ended_is_none() -> None:
    async def play(world: World) -> None:
        cortex = world.start()
        world.living = ("a", "b", "c")
        assert (await cortex.status())["lost"] == {}
        world.living, world.ended = ("a",), {"c"}
        assert (await cortex.status())["lost"] == {"b": {"host": "pod-b", "at_s": world.now_s()}}
        assert (await cortex.status("no job"))["lost"].keys() == {"b"}

    act(play)


def test_a_cortex_that_begins_again_tells_the_node_that_it_was_lost_with_and_a_first_one_tells_none() -> None:
    async def play(world: World) -> None:
        world.living, world.lost = ("a",), {"old": world.now_s() - 901.0, "b": world.now_s() - 3.0}
        assert (await world.start().status())["lost"] == {}
        cortex = world.start(again=True)
        await cortex.begin(True)
        assert (await cortex.status())["lost"] == {"b": {"host": "pod-b", "at_s": world.now_s() - 3.0}}
        world.living = ("a", "c")
        assert (await cortex.status())["lost"].keys() == {"b"}
        await cortex.close()

    act(play)


def test_a_cortex_that_begins_again_asks_for_the_lost_nodes_until_it_is_answered() -> None:
    """The head may be busy just then: one silence, and nobody told of the loss."""

    async def play(world: World) -> None:
        world.living, world.lost = ("a",), None
        cortex = world.start(again=True)
        await cortex.begin(True)
        for _ in range(2):
            assert (await cortex.status())["lost"] == {}
        world.lost = {"b": world.now_s() - 3.0}
        assert (await cortex.status())["lost"] == {"b": {"host": "pod-b", "at_s": world.now_s() - 3.0}}
        world.lost = {"c": world.now_s()}
        assert (await cortex.status())["lost"].keys() == {"b"}, "from then on it sees for itself"
        await cortex.close()

    act(play)


def test_a_memo_from_before_an_order_to_forget_is_not_given_back() -> None:
    async def play(world: World) -> None:
        world.start()
        job = world.add("j", wish=10)
        job.lease._dropped = {ROUTE: 100.0}
        share = job.k.shares[0]
        for granted_at_s, expected in ((99.0, b""), (100.0, b"memo"), (101.0, b"memo")):
            share.memo, share.granted_at_s = b"memo", granted_at_s
            assert job.lease._claims().claims[0].memo == expected

    act(play)


# -- the lease itself -------------------------------------------------------------------------------------------------


def test_a_claim_is_for_what_a_turn_was_short_of() -> None:
    """Of three votes on each step two may be in when the claim is made: asked for one alone, a step takes three turns."""

    async def play(world: World) -> None:
        world.start()
        job = world.add("j", wish=10)
        job.k.open_by_kind = {"row": {0: None}}
        await asyncio.sleep(PAUSE_S / 2)
        assert world.claims[-1][1].wanted == 1
        for count in (3, 1):
            job.k.open_by_kind = {"row": dict.fromkeys(range(count))}
            job.lease.look()
        await asyncio.sleep(PAUSE_S)
        assert world.claims[-1][1].wanted == 3
        await asyncio.sleep(RENEW_S + 1)
        assert world.claims[-1][1].wanted == 1, "once: what is not wanted any more goes to others"

    act(play)


def test_an_older_grant_and_one_of_a_cortex_that_is_over_change_nothing() -> None:
    async def play(world: World) -> None:
        world.cortex = Answers(grant(5, 10, for_s=LEASE_S))
        job = world.add("j")
        await asyncio.sleep(0.1)
        job.lease.granted(grant(7, 30))
        job.lease.granted(grant(6, 99))
        job.lease.granted(grant(7, 99))
        assert [event.permits for event in job.told] == [10, 30]
        world.cortex = Answers(grant(1, 20, "cortex.2", for_s=LEASE_S))
        job.lease.granted(grant(9, 99, "cortex.2"))
        await asyncio.sleep(1)
        job.lease.granted(grant(8, 99))
        assert [event.permits for event in job.told] == [10, 30, 20]
        at_s, claims = next(claim for claim in world.claims if claim[0] >= 0.1)
        assert (at_s, claims.cortex, claims.claims[0].held, claims.claims[0].acknowledged) == (0.1, "cortex.1", 30, 7)

    act(play)


def test_a_lease_that_nobody_renews_runs_out_by_the_clock_of_its_holder() -> None:
    """Counted from before it was asked for; a push makes it no longer; what is put into the turn comes last in it."""

    async def play(world: World) -> None:
        world.cortex = Answers(grant(1, 10, for_s=LEASE_S))
        job = world.add("j")
        await asyncio.sleep(1)
        world.cortex = None
        last_s = next(at_s for at_s, claims in world.claims if at_s >= 0)
        job.lease.granted(grant(2, 40))
        await asyncio.sleep(RENEW_S)
        job.ask()
        assert job.calls == 40
        await asyncio.sleep(last_s + LEASE_S - world.monotonic_s() - 0.001)
        job.finish(5)
        job.ask()
        assert job.calls == 45
        world.slow = True
        job.lease.granted(grant(3, 80))
        await asyncio.sleep(0.002)
        job.ask()
        assert (job.calls, job.told[-1].permits, job.told[-1].why) == (45, 0, RAN_OUT)
        job.lease.granted(grant(4, 90))
        job.finish(40)
        job.ask()
        assert job.calls == 45, "nothing is given to one whose lease has run out"
        world.cortex = Answers(grant(4, 20, for_s=LEASE_S))
        await asyncio.sleep(AGAIN_S + 1)
        job.ask()
        assert job.calls == 45 + 20

    act(play)


def test_no_larger_share_is_taken_in_before_the_cortex_has_answered_what_is_held() -> None:
    """Another cortex may hear that ten are held, while the one before still speaks."""

    async def play(world: World) -> None:
        world.cortex = Answers(grant(1, 10, for_s=LEASE_S))
        job = world.add("j")
        await asyncio.sleep(1)
        world.cortex = None
        await asyncio.sleep(RENEW_S)
        assert world.claims[-1][1].claims[0].held == 10
        job.lease.granted(grant(2, 40))
        assert job.k.permits == 10
        job.lease.granted(grant(3, 4))
        assert job.k.permits == 4, "less may be taken in at any time"
        job.lease.granted(grant(4, 50))
        world.cortex = Answers(grant(1, 10, "cortex.2", for_s=LEASE_S))
        await asyncio.sleep(AGAIN_S)
        assert [event.permits for event in job.told] == [10, 4, 10]
        job.lease.granted(grant(2, 60, "cortex.2"))
        assert job.k.permits == 60

    act(play)


def test_a_larger_share_that_overtakes_the_answer_is_taken_in_with_it() -> None:
    async def play(world: World) -> None:
        job = world.add("j")
        answers = Answers(grant(1, 10, for_s=LEASE_S))

        class Slow(Answers):
            async def join(self, blob: bytes) -> bytes:
                data = await answers.join(blob)
                await asyncio.sleep(0.1)
                return data

        world.cortex = Slow()
        await asyncio.sleep(AGAIN_S + 1)
        job.lease.again()
        await asyncio.sleep(0.05)
        job.lease.granted(grant(2, 40))
        assert job.k.permits == 10
        await asyncio.sleep(0.1)
        assert job.k.permits == 40

    act(play)


def test_a_new_cortex_is_told_what_the_last_one_granted_before_it_is_heeded() -> None:
    """The rest of a blocked account arrives while the claim to the next cortex, made before, is on its way."""

    async def play(world: World) -> None:
        late = asyncio.Event()

        class Restarted(Answers):
            async def join(self, blob: bytes) -> bytes:
                if not late.is_set():
                    await late.wait()
                return grant(1, 9, "cortex.2", for_s=LEASE_S, memo=b"of 2")

        world.cortex = Answers(grant(1, 10, for_s=LEASE_S, memo=b"of 1"))
        job = world.add("j")
        await asyncio.sleep(0.1)
        world.cortex = Restarted()
        job.lease.again()
        await asyncio.sleep(RENEW_S)
        world.slow = True
        job.lease.granted(grant(2, 0, memo=b"blocked"))
        late.set()
        await asyncio.sleep(1)
        job.lease.granted(grant(3, 5, memo=b"of a cortex that is over"))
        await asyncio.sleep(1)
        assert (job.k.permits, [event.memo for event in job.inbox]) == (10, [b"blocked"])
        job.turn()
        await asyncio.sleep(1)
        job.turn()
        assert [event.permits for event in job.told] == [10, 0, 9]
        assert [claims.claims[0].memo for _, claims in world.claims[-2:]] == [b"of 1", b"blocked"]

    act(play)


@pytest.mark.parametrize("turn_s", [1.0, 60.0])
def test_an_overtaken_claim_is_made_again_when_the_turn_is_over_not_all_the_time(turn_s: float) -> None:
    """The turn that takes the grant may take minutes: its database is away."""

    async def play(world: World) -> None:
        world.cortex = Answers(grant(1, 10, for_s=LEASE_S, memo=b"of 1"))
        job = world.add("j")
        await asyncio.sleep(0.1)
        world.slow = True
        job.lease.granted(grant(2, 5, memo=b"blocked"))
        world.cortex = Answers(grant(1, 9, "cortex.2", for_s=LEASE_S, memo=b"of 2"))
        before = len(world.claims)
        job.lease.again()
        await asyncio.sleep(turn_s)
        assert len(world.claims) - before <= 2 + turn_s / RENEW_S
        world.slow = False
        before = len(world.claims)
        job.turn()
        await asyncio.sleep(PAUSE_MAX_S + 0.01)
        assert world.claims[before][1].claims[0].memo == b"blocked"
        assert job.k.permits == 9

    act(play)


def test_what_was_learnt_of_a_route_outlives_a_lease_that_ran_out() -> None:
    async def play(world: World) -> None:
        world.cortex = Answers(grant(1, 10, for_s=LEASE_S, memo=b"learnt"))
        job = world.add("j")
        await asyncio.sleep(0.1)
        world.cortex = None
        await asyncio.sleep(LEASE_S + 1)
        job.turn()
        assert (job.told[-1].permits, job.told[-1].why, job.told[-1].memo) == (0, RAN_OUT, b"learnt")
        job.k.shares[0].granted_at_s = 99.0
        job.lease._dropped, job.lease._put_aside = {ROUTE: 100.0}, False
        assert job.lease.run_out()[0].memo == b""  # type: ignore[union-attr]

    act(play)


def test_a_lease_is_given_back_though_the_channel_closes_while_its_budgets_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(world: World) -> None:
        cortex = world.start()
        job = world.add("j")
        await asyncio.sleep(0.1)
        monkeypatch.setattr(job.lease.allowance, "leave", lambda: asyncio.sleep(5.0))
        job.k.outcome = "complete"
        job.turn()
        await asyncio.sleep(1.0)
        assert job.holding is not None
        job.holding.cancel()
        await asyncio.gather(job.holding, return_exceptions=True)
        assert (await cortex.status())["jobs"]
        await job.lease.leave()
        assert (await cortex.status())["jobs"] == {}

    act(play)


def test_leave_for_probes_is_taken_once() -> None:
    async def play(world: World) -> None:
        world.cortex = Answers(grant(1, 2, starts=2, for_s=LEASE_S))
        job = world.add("j")
        await asyncio.sleep(0.1)
        job.ask()
        job.finish(2)
        assert world.claims[-1][1].claims[0].held <= 2
        await asyncio.sleep(3 * LEASE_S)
        job.ask()
        assert job.calls == 2
        world.cortex = None
        await asyncio.sleep(2 * LEASE_S)
        job.turn()
        world.cortex = Answers(grant(1, 2, starts=2, for_s=LEASE_S))
        await asyncio.sleep(2 * AGAIN_S)
        job.ask()
        assert job.calls == 2

    act(play)


def test_more_is_asked_for_as_soon_as_it_could_be_used() -> None:
    async def play(world: World) -> None:
        world.start()
        job = world.add("j", wish=100)
        job.k.open_by_kind.clear()
        await asyncio.sleep(1.0)
        assert job.told[-1].permits == 0
        job.k.open_by_kind["row"] = dict.fromkeys(range(30))
        before_s = world.monotonic_s()
        job.turn()
        await asyncio.sleep(PAUSE_S)
        assert job.told[-1].permits == 30
        assert world.claims[-1][0] - before_s < 0.01
        job.k.open_by_kind.clear()
        job.turn()
        await asyncio.sleep(PAUSE_S)
        assert job.told[-1].permits == 0, "what nobody needs is given back at once"

    act(play)


def test_an_account_that_answers_again_is_told_at_once() -> None:
    async def play(world: World) -> None:
        world.start()
        job = world.add("j", wish=30)
        share = job.k.shares[0]
        share.blocked, share.trying = Failure(FailureKind.BLOCKED, "no credit"), True
        await asyncio.sleep(0.1)
        job.ask()
        assert (job.calls, share.permits, share.starts) == (1, 1, 0)
        well = RouteSignals(ROUTE, ROUTE, job.told[-1].generation, begun=1, answered=1)
        await world.cortex.report(
            msgspec.msgpack.encode(ProgressReport("branch:0", "b", "", 1, "calling", routes=(well,)))
        )
        share.blocked, share.trying = None, False
        job.finish(1)
        await asyncio.sleep(3 * PAUSE_S)
        assert (share.permits, share.starts) == (30, -1)

    act(play)


def test_one_who_waits_is_woken_by_a_message_and_not_by_a_clock() -> None:
    async def play(world: World) -> None:
        world.start(limit=10)
        first = world.add("a")
        await asyncio.sleep(0.1)
        first.ask()
        second = world.add("b")
        await asyncio.sleep(4.0)
        assert second.told[-1].permits == 0
        before_s = world.monotonic_s()
        first.finish(10)
        first.k.open_by_kind.clear()
        first.turn()
        await asyncio.sleep(0.009)
        assert second.told[-1].permits == 10, world.monotonic_s() - before_s

    act(play)


# -- with the cortex --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_never_more_is_granted_than_there_is_whatever_is_lost_late_or_dies(seed: int) -> None:
    """Pushes and answers are lost and late; the cortex dies and comes back; jobs come and go."""
    chance = random.Random(seed)

    async def play(world: World) -> None:
        world.slow = bool(seed % 2)
        cortex = world.start(limit=24)
        for name in ("a", "b", "c"):
            world.add(name, chance.choice((5, 20, 100)))
        await asyncio.sleep(0.5)
        for _ in range(8):
            try:
                await cortex.cap("test", ROUTE, msgspec.msgpack.encode(PoolCaps(concurrency=24)))
                break
            except ValueError:
                await asyncio.sleep(0.5)
        most = 0
        for _ in range(300):
            await asyncio.sleep(chance.random())
            for job in world.channels.values():
                job.finish(chance.randrange(0, 8))
                job.ask()
            in_use = sum(len(job.k.flights) for job in world.channels.values())
            most = max(most, in_use)
            assert in_use <= 24
            if chance.random() < 0.02 and world.cortex is not None:
                await world.cortex.close()
                world.cortex = None
                await asyncio.sleep(chance.choice((0.5, 5.0, 40.0)))
                await world.start(limit=24).begin(again=True)
        assert most > 12

    act(play, chance)


def test_a_cortex_that_came_back_grants_nothing_new_until_all_have_told_what_they_hold() -> None:
    async def play(world: World) -> None:
        world.start(limit=40)
        a, b = world.add("a", wish=100), world.add("b", wish=100)
        await asyncio.sleep(8)
        a.ask()
        b.ask()
        assert sorted((a.calls, b.calls)) == [20, 20]
        await world.cortex.close()
        world.cortex = Cortex(
            world, settings=SchedulerSettings(branches_min=0, workers_max=0, limit=LimitPolicy(start=40))
        )  # type: ignore[arg-type]
        again: Cortex = world.cortex
        again._awaited = {"never heard of"}
        again._step(SchedulerStarted(world.monotonic_s(), again.incarnation, True))
        newcomer = world.add("new")
        for job in (a, b):
            job.lease.again()
        await asyncio.sleep(1)
        assert newcomer.told[-1].permits == 0
        assert (a.k.permits, b.k.permits) <= (20, 20)
        await asyncio.sleep(LEASE_S)
        a.finish(20)
        b.finish(20)
        await asyncio.sleep(10)
        assert newcomer.told[-1].permits > 0

    act(play)


@pytest.mark.parametrize(("endpoint", "queues"), [("http://gpu:8000", True), ("https://api.anthropic.com", False)])
def test_a_claim_says_whether_the_server_may_queue_calls(endpoint: str, queues: bool) -> None:
    async def play(world: World) -> None:
        world.cortex = Answers(grant(1, 10, for_s=LEASE_S))
        job = world.add("j")
        route = Route(endpoint=endpoint, credential="c", model="m")
        job.k.terms = msgspec.structs.replace(job.k.terms, route=route)
        await asyncio.sleep(RENEW_S + 1)
        assert world.claims[-1][1].claims[0].queues is queues

    act(play)
