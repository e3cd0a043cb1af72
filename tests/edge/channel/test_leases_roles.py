"""One channel speaks for the roles of its job: each claims by its own name, all in one message."""

from __future__ import annotations

import asyncio

import msgspec

from actors.channel.leases.lease import RENEW_S
from cortex.scheduler import job_families
from cortex.scheduler.reports import Claims, Grant
from cortex.scheduler.state import LEASE_S
from cortex.state.state import Goal, State, Status
from cortex.values.limits import JobTerms, Limits, Route
from tests.edge.support.lease_fixture import Channel, World, act

OWN, JUDGE = "e|c|m", "e|c|big"


class Cast(Channel):
    """A job that wants so many calls of its own model, and so many of its judge's."""

    def __init__(self, name: str, world: World, own: int, judge: int, concurrency: int = 100) -> None:
        super().__init__(name, world, 1)
        routes = [Route(endpoint="e", credential="c", model=model) for model in ("m", "big")]
        terms = JobTerms(
            job=name, program="p", params_json=b"{}", fingerprint="f", route=routes[0], role_routes=(routes[1],),
            roles={"judge": 1}, limits=Limits(concurrency=concurrency),
        )  # fmt: skip
        self.k = State(terms=terms)
        self.want(own, judge)

    def want(self, own: int, judge: int) -> None:
        ids = iter(range(1, 1 + own + judge))
        for lane, count in enumerate((own, judge)):
            self.k.parked[lane] = {next(ids): None for _ in range(count)}
            for goal_id in self.k.parked[lane]:
                self.k.goals[goal_id] = Goal("row", id=goal_id, status=Status.OPEN, lane=lane)

    def permits(self) -> list[int]:
        return [share.permits for share in self.k.shares]


def add(world: World, own: int, judge: int, **more: int) -> Cast:
    channel = world.channels["j"] = Cast("j", world, own, judge, **more)
    channel.begin()
    return channel


def test_each_lane_is_granted_what_it_wants_in_one_message() -> None:
    async def play(world: World) -> None:
        cortex = world.start()
        job = add(world, 30, 7)
        await asyncio.sleep(0.5)
        assert job.permits() == [30, 7]
        first = world.claims[0][1]
        assert [(each.job, each.wanted) for each in (first, *first.others)] == [("j", 30), ("j~judge", 7)]
        assert (await cortex.status())["jobs"] == {"j": 30, "j~judge": 7}

    act(play)


def test_together_they_want_no_more_than_the_user_allows() -> None:
    async def play(world: World) -> None:
        world.start()
        job = add(world, 30, 30, concurrency=20)
        await asyncio.sleep(0.5)
        assert job.permits() == [10, 10]
        job.want(30, 2)
        job.turn()
        await asyncio.sleep(RENEW_S + 0.5)
        assert job.permits() == [18, 2]

    act(play)


def test_a_lane_that_has_nothing_to_ask_gives_back_all_but_one_and_that_soon() -> None:
    async def play(world: World) -> None:
        world.start()
        job = add(world, 10, 10)
        await asyncio.sleep(0.5)
        job.want(10, 0)
        job.turn()
        await asyncio.sleep(0.5)
        assert job.permits() == [10, 1], "a flow may come back to its judge at any moment"
        claims = len(world.claims)
        for _ in range(50):
            job.want(1, 0)
            job.turn()
            job.want(0, 1)
            job.turn()
            await asyncio.sleep(0.01)
        assert len(world.claims) - claims < 4, "going back and forth costs no message"
        job.want(10, 0)
        await asyncio.sleep(2 * RENEW_S + 1)
        assert job.permits() == [10, 0]

    act(play)


def test_a_lease_that_runs_out_runs_out_for_all_lanes_and_another_cortex_hears_of_all() -> None:
    async def play(world: World) -> None:
        world.start()
        job = add(world, 10, 5)
        await asyncio.sleep(0.5)
        job.ask()
        world.cortex = None
        await asyncio.sleep(LEASE_S + 1)
        job.turn()
        assert job.permits() == [0, 0]
        cortex = world.start(again=True)
        await cortex.begin(True)
        await asyncio.sleep(2.0)
        assert job.permits() == [20, 5], "ten are under way, ten wait"
        latest = world.claims[-1][1]
        assert latest.cortex and [each.job for each in latest.others] == ["j~judge"]

    act(play)


def test_when_the_job_ends_all_its_lanes_are_given_back() -> None:
    async def play(world: World) -> None:
        cortex = world.start()
        job = add(world, 10, 5)
        await asyncio.sleep(0.5)
        job.k.outcome = "complete"
        job.turn()
        await asyncio.sleep(0.5)
        assert (await cortex.status())["jobs"] == {}

    act(play)


def test_a_grant_of_one_lane_is_none_of_anothers() -> None:
    """Both may name the same route: as a fallback, and as a role's."""

    async def play(world: World) -> None:
        world.start()
        job = add(world, 3, 3)
        await asyncio.sleep(0.5)
        stray = Grant("j", JUDGE, "cortex.1", 99, 77)
        job.lease.granted(msgspec.msgpack.encode((stray,)))
        assert job.permits() == [3, 3]
        job.lease.granted(msgspec.msgpack.encode((msgspec.structs.replace(stray, job="j~judge"),)))
        assert job.permits() == [3, 77]

    act(play)


def test_names() -> None:
    assert job_families.member_of("j~2", "judge") == "j~2~judge"
    for name, job in (("j", "j"), ("j~2", "j~2"), ("j~judge", "j"), ("j~2~judge", "j~2"), ("j~2~3", "j~2~3")):
        assert (job_families.spoken_for(name), job_families.root_of(name)) == (job, "j")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Claims("j", 1, "", 0, 1, ())), type=Claims).others == ()
