"""Where actors may live in a cluster whose nodes say what they are for, and what its autoscaler is asked for."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from ray.core.generated.gcs_pb2 import GcsNodeInfo  # type: ignore[attr-defined]

from actors.cluster.placement import (
    awaited,
    host_address,
    host_name,
    in_turn,
    lost_since,
    missing,
    selector,
    shapes,
    tied,
    turn_of,
    was_ended,
)
from actors.scheduler.actor import Cortex
from cortex.scheduler.lost_nodes import LOST_S, MISSING_S
from cortex.scheduler.protocol import NodesChanged
from cortex.scheduler.state import SchedulerSettings
from policies.limits.limit import LimitPolicy
from tests.edge.support.lease_fixture import World, act
from tests.edge.support.virtual_clock import virtually
from tests.support.fake_job_channels import Town, settings


def node(name: str, role: str = "", alive: bool = True) -> dict[str, object]:
    labels = {"ray.io/node-id": name, **({"cortex/role": role} if role else {})}
    return {"NodeID": name, "Alive": alive, "Labels": labels}


ARRANGED = [node("h", "control"), node("a", "branch"), node("b", "branch"), node("w", "worker")]


def test_where_no_node_says_what_it_is_for_any_will_do():
    assert selector("branch", [node("a"), node("b", "branch", alive=False)]) == {}
    assert selector("branch", [{"NodeID": "a", "Alive": True}]) == {}, "a Ray without labels"


def test_each_lives_where_its_role_does():
    assert [selector(role, ARRANGED) for role in ("cortex", "branch", "worker", "channel")] == [
        {"cortex/role": "control"}, {"cortex/role": "branch"}, {"cortex/role": "worker"}, {"cortex/role": "control"},
    ]  # fmt: skip


def test_a_channel_whose_journal_is_in_a_database_lives_among_its_own_or_beside_the_cortex():
    assert selector("channel", [*ARRANGED, node("c", "channel")]) == {"cortex/role": "channel"}
    assert selector("channel", [node("a", "branch")]) == {}, "it does not wait, nor does it work where nothing says so"


def test_what_models_wrote_waits_for_its_node_rather_than_run_beside_the_key():
    assert selector("worker", [node("a", "branch")]) == {"cortex/role": "worker"}
    assert selector("cortex", [node("a", "branch")]) == {}, "the cortex does not wait"


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"instance_id": "cortex-branch-worker-x7k2p", "node_manager_hostname": "node-3"}, "cortex-branch-worker-x7k2p"),
        ({"node_manager_hostname": "rack7.example", "node_name": "10.0.0.7"}, "rack7.example"),
        ({"node_name": "10.0.0.7"}, ""),
    ],
)
def test_a_node_has_the_name_of_its_pod_else_of_its_host(told: dict[str, str], name: str):
    assert host_name(GcsNodeInfo(**told)) == name


@pytest.mark.parametrize(
    ("reason", "ended"),
    [
        ("UNSPECIFIED", False), ("UNEXPECTED_TERMINATION", False), ("EXPECTED_TERMINATION", True),
        ("AUTOSCALER_DRAIN_PREEMPTED", True), ("AUTOSCALER_DRAIN_IDLE", True),
    ],
)  # fmt: skip
def test_a_node_that_ray_was_told_to_end_is_not_lost(reason: str, ended: bool) -> None:
    node = GcsNodeInfo()
    node.death_info.reason = node.death_info.DESCRIPTOR.enum_types_by_name["Reason"].values_by_name[reason].number
    assert was_ended(node) == ended


def _record(host: str, began_s: int, ended_s: int = 0, why: str = "UNEXPECTED_TERMINATION") -> GcsNodeInfo:
    node = GcsNodeInfo(node_manager_hostname=host, start_time_ms=began_s * 1000, end_time_ms=ended_s * 1000)
    node.death_info.reason = node.death_info.DESCRIPTOR.enum_types_by_name["Reason"].values_by_name[why].number
    return node


@pytest.mark.parametrize(
    ("records", "lost"),
    [
        ({"a": _record("h", 1), "b": _record("p", 1, 100)}, {"b": ("p", 100.0)}),
        ({"a": _record("h", 1), "b": _record("p", 1, 49)}, {}),  # too long ago
        ({"a": _record("h", 1), "b": _record("p", 1, 100, "EXPECTED_TERMINATION")}, {}),
        ({"a": _record("h", 1), "b": _record("h", 1, 100)}, {"b": ("h", 100.0)}),  # the other node of a machine lived all along
        ({"a": _record("p", 101), "b": _record("p", 1, 100)}, {}),  # it is back
        ({"a": _record("p", 101), "b": _record("p", 1, 100), "c": _record("p", 1, 99)}, {"b": ("p", 100.0)}),  # one of two is
        ({"c": _record("q", 1, 99), "b": _record("p", 1, 100)}, {"c": ("q", 99.0), "b": ("p", 100.0)}),
    ],
)  # fmt: skip
def test_nodes_that_ray_says_were_lost_lately(records: dict[str, GcsNodeInfo], lost: dict[str, tuple[str, float]]) -> None:
    found = lost_since(records, 50.0)
    assert list(found.items()) == list(lost.items())


@pytest.mark.parametrize(
    ("records", "after_s", "told"),
    [
        ({"a": _record("h", 1), "b": _record("p", 1, 100)}, LOST_S - 1, True),
        ({"a": _record("h", 1), "b": _record("p", 1, 100)}, LOST_S, True),  # nobody came in its place
        ({"a": _record("h", 1), "b": _record("p", 1, 100)}, MISSING_S - 1, True),
        ({"a": _record("h", 1), "b": _record("p", 1, 100)}, MISSING_S + 1, False),
        ({"a": _record("h", 1), "b": _record("p", 1, 100), "c": _record("q", 130)}, LOST_S - 1, True),
        ({"a": _record("h", 1), "b": _record("p", 1, 100), "c": _record("q", 130)}, LOST_S, False),
        ({"a": _record("h", 1), "b": _record("p", 1, 100), "c": _record("p", 130)}, 1.0, False),  # it is back
    ],
)
def test_nodes_that_doctor_tells_are_those_that_status_tells(records: dict[str, GcsNodeInfo], after_s: float, told: bool):
    assert (missing(records, 100 + after_s) == {"b": ("p", 100.0)}) == told


@pytest.mark.parametrize("seed", range(40))
def test_of_any_history_doctor_tells_what_the_scheduler_tells(seed: int) -> None:
    chance, town = random.Random(seed), Town(settings(10))
    records = {f"n{number}": _record(f"n{number}", 0) for number in range(4)}
    town.tell(NodesChanged(town.at_s, tuple(records), 0, {name: name for name in records}))
    for step in range(1, 30):
        town.after(float(chance.choice((1, 60, 300, 900, 20_000))))
        living = [name for name, node in records.items() if not node.end_time_ms]
        busy, ended = {host_name(records[name]) for name in living}, []
        for name in chance.sample(living, min(len(living), chance.randrange(3))):
            why = chance.choice(("UNEXPECTED_TERMINATION", "EXPECTED_TERMINATION"))
            one = records[name]
            records[name] = _record(host_name(one), one.start_time_ms // 1_000, int(town.at_s), why)
            ended += [name] * was_ended(records[name])
        for _ in range(chance.choice((0, 0, 1, 2))):
            host = f"n{chance.randrange(20)}"
            if host not in busy:
                records[f"{host}-{step}"] = _record(host, int(town.at_s))
        names = tuple(name for name, node in records.items() if not node.end_time_ms)
        hosts = {name: host_name(records[name]) for name in names}
        town.tell(NodesChanged(town.at_s, names, 0, hosts, tuple(ended), town.at_s))
        told = {name: (lost.host, lost.now_s) for name, lost in town.state.lost.items()}
        assert missing(records, town.at_s) == told


def test_a_node_to_avoid_is_passed_over_while_there_is_another_of_the_role():
    assert selector("branch", ARRANGED, ["b", "w"]) == {"cortex/role": "branch", "ray.io/node-id": "!in(b,w)"}
    assert selector("worker", ARRANGED, ["w"]) == {"cortex/role": "worker"}


def test_the_autoscaler_is_asked_for_a_core_for_each():
    assert shapes(2, 1, ARRANGED) == (
        [{"CPU": 1}] * 3, [{"cortex/role": "branch"}, {"cortex/role": "branch"}, {"cortex/role": "worker"}],
    )  # fmt: skip
    assert shapes(0, 0, ARRANGED) == ([], [])
    assert shapes(1, 0, [node("a")]) == ([{"CPU": 1}], [{}])


def test_a_cluster_is_asked_for_as_many_as_there_is_work_for_and_for_none_when_the_jobs_are_gone():
    """Not as many as there is room for now: it would never grow."""

    async def play(world: World) -> None:
        world.start(limit=450)
        world.room = 2
        world.add("j", wish=450)
        await asyncio.sleep(20)
        assert world.wanted_room[-1] == (5, 0)
        assert len(world.wanted_room) == len(dict.fromkeys(world.wanted_room)), "said only when it changes"
        await world.cortex.leave("j", 1)
        await asyncio.sleep(1)
        assert world.wanted_room[-1] == (0, 0)

    act(play)


class Autoscaler(World):
    """World whose requests for cores take ``takes_s`` seconds in a thread, which no cancellation stops, and of which
    the first ``refused`` raise an error although they take effect.
    """

    def __init__(self, takes_s: float = 0.0, refused: int = 0) -> None:
        super().__init__()
        self.takes_s, self.refused, self.at_once, self.at_once_max = takes_s, refused, 0, 0
        own = SchedulerSettings(branches_min=1, branches_max=9, workers_max=0, limit=LimitPolicy(start=450))
        self.cortex = Cortex(self, settings=own)  # type: ignore[arg-type]

    async def start_actor(self, role: str, name: str, *args: Any, avoid: tuple[str, ...] = ()) -> Any:
        await asyncio.Event().wait()

    async def make_room(self, branches: int, workers: int) -> None:
        await asyncio.shield(asyncio.ensure_future(self._request(branches, workers)))

    async def _request(self, branches: int, workers: int) -> None:
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        await asyncio.sleep(self.takes_s)
        self.wanted_room.append((branches, workers))
        self.at_once -= 1
        if self.refused:
            self.refused -= 1
            raise ConnectionError("the head is away")


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("after_s", [0.1, 2.0, 4.0, 7.0])
@pytest.mark.parametrize(("takes_s", "refused"), [(0.0, 0), (1.5, 0), (6.0, 0), (0.5, 2), (0.5, 5)])
def test_the_last_request_for_cores_is_the_newest_whenever_the_last_job_leaves(
    takes_s: float, refused: int, after_s: float, says: bool
) -> None:
    """Whether its channel ``says`` that it leaves, or dies."""

    async def play() -> Autoscaler:
        world = Autoscaler(takes_s, refused)
        world.add("j", wish=450)
        await asyncio.sleep(after_s)
        world.channels["j"].holding.cancel()  # type: ignore[union-attr]
        if says:
            await world.cortex.leave("j", 1)
        await asyncio.sleep(300)
        await world.end()
        return world

    world = virtually(play())
    assert world.wanted_room[-1] == (0, 0)
    assert world.at_once_max == 1


def test_a_restarted_scheduler_without_jobs_takes_back_the_request_of_its_predecessor() -> None:
    async def play() -> list[tuple[int, int]]:
        world = Autoscaler()
        await world.cortex.begin(True)
        await asyncio.sleep(30)
        await world.end()
        return world.wanted_room

    assert virtually(play()) == [(0, 0)]


HOSTS = [
    {"NodeID": "n1", "Alive": False, "NodeManagerAddress": "10.0.0.1", "Resources": {}},
    {"NodeID": "n2", "Alive": True, "NodeManagerAddress": "10.0.0.2", "Resources": {"CPU": 1.0, "node:10.0.0.2": 1.0}},
    {"NodeID": "n3", "Alive": True, "NodeManagerAddress": "head", "Resources": {"node:10.0.0.3": 1.0}},
]


def test_a_channel_is_tied_to_the_host_of_its_disk():
    assert host_address("n2", HOSTS) == "10.0.0.2"
    assert tied("10.0.0.2") == {"node:10.0.0.2": 0.0001}
    assert host_address("n3", HOSTS) == "", "what no node has would be waited for without end"
    assert host_address("n1", HOSTS) == host_address("unknown", HOSTS) == ""
    assert tied("") == {}


def test_a_channel_waits_for_its_host_only_while_that_is_gone():
    assert awaited("RESTARTING", "10.0.0.1", HOSTS) == awaited("PENDING_CREATION", "10.0.0.1", HOSTS) == "10.0.0.1"
    assert awaited("RESTARTING", "10.0.0.2", HOSTS) == "", "its host is there: it comes back by itself"
    assert awaited("ALIVE", "10.0.0.1", HOSTS) == awaited("DEAD", "10.0.0.1", HOSTS) == ""
    assert awaited("RESTARTING", "", HOSTS) == "", "it is tied to none: it comes back on another"


def test_actors_of_a_role_take_nodes_in_turns():
    nodes = [{"NodeID": name, "Alive": name != "n2"} for name in ("n3", "n0", "n2", "n1")]
    assert [turn_of(f"branch:{slot}", nodes) for slot in range(4)] == ["n0", "n1", "n3", "n0"]
    assert [turn_of(f"branch:{slot}", nodes, ("n1",)) for slot in range(3)] == ["n0", "n3", "n0"]
    assert turn_of("channel:a", nodes) == turn_of("channel:a", nodes[::-1]) != ""
    assert turn_of("branch:0", nodes, ("n0", "n1", "n3")) == "", "then Ray chooses"
    assert turn_of("branch:0", nodes[1:3]) == "", "there is one"


def test_the_node_whose_turn_it_is_is_named_to_ray_and_any_other_of_the_role_if_it_has_gone():
    nodes = [node("n0"), node("n1")]
    assert in_turn("branch:3", nodes, {}) == {
        "label_selector": {"ray.io/node-id": "n1"},
        "fallback_strategy": [{"label_selector": {}}],
    }
    assert in_turn("branch:3", nodes, {}, ["n1"])["label_selector"] == {"ray.io/node-id": "n0"}
    assert in_turn("branch:3", nodes[:1], {}) == {"label_selector": None}, "there is one"
    role = {"cortex/role": "branch"}
    assert [in_turn(f"branch:{slot}", ARRANGED, role) for slot in range(2)] == [
        {"label_selector": {**role, "ray.io/node-id": name}, "fallback_strategy": [{"label_selector": role}]} for name in "ab"
    ]  # fmt: skip
    passed = selector("branch", ARRANGED, ["b"])
    found = in_turn("branch:1", ARRANGED, passed, ["b"])
    assert found["label_selector"] == {**role, "ray.io/node-id": "a"}
    assert found["fallback_strategy"] == [{"label_selector": passed}]
    assert in_turn("branch:1", ARRANGED[:1], role) == {"label_selector": role}, "it waits for a node of its role"
