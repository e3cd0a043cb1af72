"""A channel comes to know the branches and workers that there are, whatever becomes of the messages that say so."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from actors.channel.leases.lease import PAUSE_S, RENEW_S
from actors.ports.runtime import ClusterError, PeerUnavailable
from actors.scheduler.actor import NODES_S, Cortex
from actors.scheduler.supervisor import PING_S, Supervisor
from cortex.scheduler.protocol import (
    DrainMember,
    KillMember,
    MemberDied,
    MemberStarted,
    PingMember,
    RetireMember,
    StartMember,
)
from cortex.scheduler.reports import ProgressReport, staff_digest
from cortex.scheduler.state import SchedulerSettings
from tests.edge.support.lease_fixture import Channel, Peer, World
from tests.edge.support.virtual_clock import virtually
from tests.support.patience import PATIENCE_S

Staff = tuple[tuple[str, ...], tuple[str, ...]]
NOBODY: Staff = ((), ())
ALL: Staff = (("branch:0",), ("worker:0",))


class Told(Peer):
    """Word of the staff takes as long as its world says; None: it is lost."""

    world: Unruly

    async def _told(self, method: str, args: tuple[Any, ...]) -> None:
        if method != "staffed":
            return await super()._told(method, args)
        self.world.said.append(args)  # type: ignore[arg-type]
        delay_s = self.world.delays.pop(0) if self.world.delays else 0.0
        if delay_s is not None:
            await asyncio.sleep(delay_s)
            self.world.known = args  # type: ignore[assignment]
        return None


class Unruly(World):
    def __init__(self, *delays: float | None) -> None:
        super().__init__()
        self.delays = list(delays)
        self.said: list[Staff] = []
        self.known = NOBODY
        self.cortex = Cortex(self, settings=SchedulerSettings(branches_min=1, branches_max=1, workers_max=1))  # type: ignore[arg-type]

    def peer(self, name: str) -> Any:
        return Told(name, self)

    async def start_actor(self, role: str, name: str, *args: Any, avoid: tuple[str, ...] = ()) -> Any:
        await asyncio.Event().wait()

    def there(self, name: str) -> None:
        self.cortex._post(MemberStarted(self.monotonic_s(), name, ""))

    def begin(self, staff: Staff) -> Channel:
        """A channel that asked for the staff when it began."""
        self.known = staff
        channel = self.channels["j"] = Channel("j", self, 5)
        channel.lease._runs = lambda: 1
        channel.lease._staff = lambda: staff_digest(*self.known)
        channel.begin()
        return channel


@pytest.mark.parametrize("delays", [(None, None), (None, None, None), (1.0, 0.0), (2 * RENEW_S, 0.0), ()])
def test_word_that_is_lost_or_overtaken_is_said_again_with_the_next_claim(delays: tuple[float | None, ...]) -> None:
    async def play() -> None:
        world = Unruly(*delays)
        world.begin(NOBODY)
        await asyncio.sleep(0.5)
        world.there("branch:0")
        world.there("worker:0")
        await asyncio.sleep(4 * RENEW_S)
        assert world.said[-1] == ALL
        assert world.known == ALL
        await world.end()

    virtually(play())


def test_one_that_knows_is_told_nothing_until_something_changes() -> None:
    async def play() -> None:
        world = Unruly()
        world.there("branch:0")
        world.there("worker:0")
        world.begin(ALL)
        await asyncio.sleep(4 * RENEW_S)
        assert world.said == []
        world.cortex._post(DrainMember(world.monotonic_s(), "somebody", "worker:0"))
        await asyncio.sleep(PAUSE_S)
        assert world.known == (("branch:0",), ()), "at once, and not with the next claim"
        await world.end()

    virtually(play())


def test_the_same_names_give_the_same_number_and_others_another() -> None:
    staffs: list[Staff] = [
        NOBODY,
        ALL,
        (("branch:0",), ()),
        ((), ("branch:0",)),
        (("branch:0", "branch:1"), ("worker:0",)),
    ]
    numbers = [staff_digest(*staff) for staff in staffs]
    assert len(set(numbers)) == len(staffs)
    assert 0 not in numbers
    assert staff_digest(["branch:0"], ["worker:0"]) == staff_digest(*ALL)


def test_a_job_whose_calls_draw_on_no_pool_renews_all_the_same_and_no_more_often() -> None:
    async def play() -> None:
        world = World()
        world.start()
        channel = world.add("j")
        channel.k.terms = msgspec.structs.replace(
            channel.k.terms, route=msgspec.structs.replace(channel.k.terms.route, via="batches")
        )
        for _ in range(100):
            channel.turn()
            await asyncio.sleep(RENEW_S / 10)
        assert [claims.claims for _, claims in world.claims] == [()] * len(world.claims)
        assert 9 <= len(world.claims) <= 12
        assert channel.told == []
        assert list(world.cortex._state.jobs) == ["j"]
        channel.k.outcome = "complete"
        channel.turn()
        await asyncio.sleep(1.0)
        assert world.cortex._state.jobs == {}
        await world.end()

    virtually(play())


def test_a_cluster_that_grows_has_room_for_more() -> None:
    async def play() -> None:
        world = Unruly()
        world.begin(NOBODY)
        for world.room in (2, 5):
            await asyncio.sleep(1.1 * NODES_S)
            own = world.cortex._state.settings
            assert (own.branches_max, own.workers_max) == (world.room, world.room)
        await world.end()

    virtually(play())


def test_a_late_report_of_an_earlier_process_does_not_hide_the_present_one() -> None:
    """The cluster is asked whether the present one has ended: that the earlier one has says nothing."""

    async def play() -> None:
        world = Unruly()
        for number, incarnation in ((1, "earlier"), (1, "present"), (2, "earlier")):
            report = ProgressReport("branch:0", incarnation, "node", number, "calling", 1)
            await world.cortex.report(msgspec.msgpack.encode(report))
        assert world.cortex._supervisor.known == {"branch:0": "present"}
        await world.end()

    virtually(play())


class Forgetful(Unruly):
    """A process called branch:7 hangs, of which the cortex knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.killed: list[str] = []

    def peer(self, name: str) -> Any:
        return Mute() if name == "branch:7" else super().peer(name)

    async def is_dead(self, name: str, incarnation: str) -> bool:
        return False

    async def kill_actor(self, name: str) -> None:
        self.killed.append(name)


class Mute:
    async def ask(self, method: str, *args: Any) -> Any:
        await asyncio.Event().wait()

    def tell(self, method: str, *args: Any) -> None: ...


@pytest.mark.parametrize("missed", [True, False])
def test_a_hung_branch_that_is_not_known_is_ended_once_a_channel_misses_it(missed: bool) -> None:
    async def play() -> None:
        world = Forgetful()
        world.there("branch:0")
        world.begin((("branch:0",), ()))
        for _ in range(150):
            if missed:
                await world.cortex.missed("branch:7")
            await asyncio.sleep(1.0)
        assert ("branch:7" in world.killed) == missed
        await world.end()

    virtually(play())


class Restarted(Unruly):
    """A branch lives that an earlier cortex started, with calls of these jobs."""

    def __init__(self, *jobs: str) -> None:
        super().__init__()
        self.jobs = jobs

    async def names(self, prefix: str) -> tuple[str, ...]:
        return ("branch:0", *await super().names(prefix))

    def peer(self, name: str) -> Any:
        return Holding(self.jobs) if name == "branch:0" else super().peer(name)


class Holding(Mute):
    def __init__(self, jobs: tuple[str, ...]) -> None:
        self.jobs = jobs

    async def ask(self, method: str, *args: Any) -> Any:
        return "branch:0.1", "node", self.jobs


@pytest.mark.parametrize(("jobs", "waits"), [((), False), (("j",), False), (("j", "ended"), True)])
def test_calls_of_a_job_whose_channel_has_ended_are_waited_for_after_a_restart(
    jobs: tuple[str, ...], waits: bool
) -> None:
    """Else their permits would be given away while they go on."""

    async def play() -> None:
        world = Restarted(*jobs)
        world.begin((("branch:0",), ()))
        await world.cortex.begin(again=True)
        await asyncio.sleep(2 * RENEW_S)
        state = world.cortex._state
        assert "j" in state.jobs
        assert (state.silent_until_s > state.at_s) == waits
        await asyncio.sleep(2 * RENEW_S)
        assert state.silent_until_s <= world.monotonic_s(), "not for longer than a lease"
        await world.end()

    virtually(play())


async def test_a_start_that_failed_and_is_ordered_again_at_once_is_tried_again() -> None:
    """The order comes from the end of the first start's own task, which is still there."""
    tries: list[str] = []
    up = asyncio.Event()

    class Failing:
        def monotonic_s(self) -> float:
            return 0.0

        async def start_actor(self, role: str, name: str, avoid: tuple[str, ...] = ()) -> None:
            tries.append(name)
            await asyncio.sleep(0)
            if len(tries) < 3:
                raise ClusterError("the node is gone")

        def peer(self, name: str) -> Any:
            return Ready()

    def post(event: Any) -> None:
        if isinstance(event, MemberDied):
            supervisor.carry_out(StartMember("branch", event.subject, ()))
        else:
            up.set()

    supervisor = Supervisor(Failing(), post)  # type: ignore[arg-type]
    supervisor.carry_out(StartMember("branch", "branch:1", ()))
    await asyncio.wait_for(up.wait(), PATIENCE_S)
    assert tries == ["branch:1"] * 3
    await supervisor.close()


@pytest.mark.parametrize(("retiring", "event"), [(False, "MemberDied"), (True, "PingUnanswered")])
def test_the_death_of_a_known_process_says_nothing_of_another_that_is_to_be_retired(retiring: bool, event: str) -> None:
    """The cluster has started that one again, and it hangs: forgotten, it was waited for by a job without end."""

    async def play() -> None:
        seen: list[str] = []

        class Replaced(Unruly):
            def peer(self, name: str) -> Any:
                return Mute()

            async def is_dead(self, name: str, incarnation: str) -> bool:
                return incarnation == "earlier"

        supervisor = Supervisor(Replaced(), lambda each: seen.append(type(each).__name__))
        supervisor.known["branch:0"] = "earlier"
        if retiring:
            supervisor.carry_out(RetireMember("branch:0"))
        supervisor.carry_out(PingMember("branch:0"))
        await asyncio.sleep(2 * PING_S)
        assert seen == [event]
        await supervisor.close()

    virtually(play())


class Ready:
    async def ask(self, method: str, *args: Any) -> Any:
        return "incarnation", "node"


class Troubled:
    """Runtime whose cluster answers with an error that no interface names, as Ray does while its head is away.

    ``methods``: the ones that raise.
    """

    def __init__(self, *methods: str) -> None:
        self.methods = methods
        self.posted: list[str] = []
        self.supervisor = Supervisor(self, lambda event: self.posted.append(type(event).__name__))  # type: ignore[arg-type]

    def monotonic_s(self) -> float:
        return 0.0

    def peer(self, name: str) -> Any:
        return self

    async def ask(self, method: str, *args: Any) -> Any:
        self._see(method)
        raise PeerUnavailable

    async def is_dead(self, name: str, incarnation: str) -> bool:
        self._see("is_dead")
        return False

    async def end_actor(self, name: str) -> None:
        self._see("end_actor")

    async def kill_actor(self, name: str) -> None:
        self._see("kill_actor")

    def _see(self, method: str) -> None:
        if method in self.methods:
            raise RuntimeError("the head is away")

    async def after(self, *orders: Any) -> list[str]:
        for order in orders:
            self.supervisor.carry_out(order)
        while self.supervisor._tasks:  # noqa: ASYNC110 - tasks have no common end
            await asyncio.sleep(0)
        return self.posted


@pytest.mark.parametrize(
    ("methods", "order", "posted"),
    [
        (("is_dead",), PingMember("branch:0"), ["PingUnanswered"]),
        (("ping",), PingMember("branch:0"), ["PingUnanswered"]),
        (("ping", "is_dead"), PingMember("branch:0"), ["PingUnanswered"]),
        (("drain",), RetireMember("branch:0"), ["MemberDied"]),
    ],
)
async def test_an_error_of_the_cluster_leaves_no_order_without_its_event(
    methods: tuple[str, ...], order: Any, posted: list[str]
) -> None:
    world = Troubled(*methods)
    world.supervisor.known["branch:0"] = "branch:0.1"
    assert await world.after(order) == posted


async def test_a_kill_that_failed_is_told_and_can_be_ordered_again(caplog: pytest.LogCaptureFixture) -> None:
    world = Troubled("kill_actor")
    order = KillMember("branch:0", "silent")
    assert await world.after(order) == []
    assert "the order to kill branch:0 met an error" in caplog.text
    world.methods = ()
    assert await world.after(order) == ["MemberDied"]


@pytest.mark.parametrize("method", ["ping", "finding"])
def test_a_scheduler_that_could_not_find_a_member_staffs_later_jobs_all_the_same(method: str) -> None:
    """Members that it could not ask are unknown: those are started that the job needs."""

    async def play() -> None:
        world = Unfound()
        await world.cortex.begin(again=True)
        world.fails = method == "ping"
        if method == "finding":
            world.cortex._finding = asyncio.create_task(world.failing())
        for _ in range(2):
            assert await world.cortex.staff() == (("branch:0",), ())
        await world.end()

    virtually(play())


class Unfound(Restarted):
    """A cluster that does not name what it knows of a member, and starts another."""

    fails = True

    def peer(self, name: str) -> Any:
        return Refusing(self) if name == "branch:0" else super().peer(name)

    async def failing(self) -> None:
        raise RuntimeError("the head is away")

    async def start_actor(self, role: str, name: str, *args: Any, avoid: tuple[str, ...] = ()) -> Any:
        self.fails = False


class Refusing(Holding):
    def __init__(self, world: Unfound) -> None:
        super().__init__(())
        self.world = world

    async def ask(self, method: str, *args: Any) -> Any:
        if self.world.fails:
            raise RuntimeError("the head is away")
        return await super().ask(method, *args)
