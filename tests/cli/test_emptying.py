"""``drain --all``, ``drain --node … --within`` and ``down``: what a cluster is told, and what is said of it."""

from __future__ import annotations

import getpass
import json
from typing import Any

import msgspec
import pytest

from actors.cli.control import steer
from actors.journal.journal import JobEnded
from actors.ports.runtime import ChannelNotStarted, ClusterLost, PeerGone, PeerUnavailable


class There:
    """A cluster with two jobs, one of which has something in flight for long; it has forgotten nothing yet."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.living = ["channel:a", "channel:b", "channel:b~1", "branch:0", "cortex", "worker:0"]
        self.stuck: set[str] = set()
        self.sealed: set[str] = set()
        self.refusals: dict[str, list[Exception]] = {}
        self.cleared = self.began = False
        self.staff = {"branch:0": {"node": "n1"}, "worker:0": {"node": "n2"}}
        self.notes = self

    def clear(self) -> None:
        self.cleared = True

    def node(self) -> str:
        return "n1"

    async def names(self, prefix: str) -> tuple[str, ...]:
        return tuple(name for name in self.living if name.startswith(prefix))

    def peer(self, name: str) -> Any:
        there = self

        class Peer:
            async def ask(self, method: str, *args: Any) -> Any:
                there.told.append((name, method, *args))
                if refusals := there.refusals.get(name):
                    raise refusals.pop(0)
                if name not in there.living:
                    raise PeerGone(name)
                if name == "cortex" and method == "drain" and args[1] not in ("n1", "n2"):
                    raise ValueError(f"there is no node, branch or worker called {args[1]}")
                if name == "cortex" and method == "status":
                    empty = there.told.count((name, method)) > 3 and not there.stuck  # the first is for the node's name
                    return {"nodes": {"n1": {"host": "pod-1"}}, "staff": {} if empty else there.staff}
                if name in there.sealed:
                    if method != "status":
                        raise JobEnded(f"{name} has ended")
                    return msgspec.json.encode({"outcome": "complete"})
                return msgspec.json.encode({"outcome": "running" if name in there.stuck else "partial"})

        return Peer()

    async def kill_actor(self, name: str) -> None:
        if name in self.living:
            self.living.remove(name)

    end_actor = kill_actor

    async def close(self) -> None: ...


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> There:
    found = There()

    async def start_runtime(cluster: str, environ: object, begin: bool = True) -> There:
        assert cluster == "head:6379"
        found.began = begin
        return found

    monkeypatch.setattr("actors.runtime.ray_runtime.start_runtime", start_runtime)
    monkeypatch.setattr("actors.cli.control.drain.LOOK_S", 0.01)
    monkeypatch.setattr("actors.cli.control.drain.RESULTS_S", 0.01)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    return found


def test_a_job_that_had_ended_is_told_as_such_and_others_rest(cortex, there):
    there.sealed.add("channel:a")
    done = cortex("drain", "--all")
    assert done.code == 0
    assert done.said()[:2] == ["job a is complete", "job b rests, and can be resumed"]


async def test_an_order_to_a_channel_that_takes_in_nothing_more_goes_to_the_journal(there):
    there.sealed.add("channel:a")
    assert not await steer._send_to_channel("a", "head:6379", steer._stopping("cancel"))
    assert await steer._send_to_channel("b", "head:6379", steer._stopping("cancel"))


def test_all_jobs_of_a_cluster_rest_and_child_jobs_with_them(cortex, there):
    done = cortex("drain", "--all", "--json")
    assert done.code == 0
    assert done.said()[:2] == ["job a rests, and can be resumed", "job b rests, and can be resumed"]
    assert [(name, *rest) for name, method, *rest in there.told if method == "stop"] == [
        ("channel:a", "drain", getpass.getuser()), ("channel:b", "drain", getpass.getuser()),
    ]  # fmt: skip
    assert json.loads(done.out) == {
        "cluster": "head:6379", "jobs": [{"job": "a", "outcome": "partial"}, {"job": "b", "outcome": "partial"}],
    }  # fmt: skip
    assert not there.began, "a cluster without a cortex is not given one to be emptied"
    assert len(there.living) == 6


def test_a_job_that_does_not_come_to_rest_in_time_is_named(cortex, there):
    there.stuck = {"channel:b"}
    done = cortex("drain", "--all", "--within", "0.1s")
    assert (done.code, done.said()[1]) == (1, "job b still has calls in flight")


def test_a_channel_that_is_being_restarted_is_told_again_until_it_knows(cortex, there):
    there.refusals["channel:b"] = [PeerUnavailable("channel:b") for _ in range(3)]
    done = cortex("drain", "--all")
    assert (done.code, done.said()[1]) == (0, "job b rests, and can be resumed")
    assert [method for name, method, *_ in there.told if name == "channel:b"] == ["stop"] * 4 + ["status"]


@pytest.mark.parametrize("within", [("--within", "0.05s"), ()])
def test_a_channel_that_stays_unavailable_does_not_count_as_at_rest(cortex, there, monkeypatch, within):
    monkeypatch.setattr("actors.cli.control.drain.AWAY_PATIENCE_S", 0.05)
    there.refusals["channel:b"] = [PeerUnavailable("channel:b") for _ in range(1_000)]
    done = cortex("drain", "--all", "--json", *within)
    assert (done.code, done.said()[1]) == (1, "job b does not answer, and may still run: give the command again")
    assert json.loads(done.out)["jobs"][1] == {"job": "b", "outcome": "away"}


@pytest.mark.parametrize(
    ("refused", "code", "said"),
    [
        (PeerGone("channel:b"), 0, "rests, and can be resumed"),
        (ChannelNotStarted("channel:b"), 0, "rests, and can be resumed"),
        (ClusterLost("the head is gone"), 1, "does not answer, and may still run: give the command again"),
    ],
    ids=lambda case: type(case).__name__,
)
def test_only_a_channel_that_is_known_to_be_gone_has_let_its_job_go(cortex, there, refused, code, said):
    there.refusals["channel:b"] = [refused]
    done = cortex("drain", "--all")
    assert (done.code, done.said()[1]) == (code, f"job b {said}")


def test_a_node_is_waited_for_until_it_is_empty(cortex, there):
    done = cortex("drain", "--node", "here", "--within", "100s")
    assert (done.code, done.said()) == (0, ["node n1 is empty, and gets no more work"])
    assert there.told[1] == ("cortex", "drain", getpass.getuser(), "n1")
    there.stuck, there.told[:] = {"branch:0"}, []
    done = cortex("drain", "--node", "pod-1", "--within", "0.1s")
    assert (done.code, done.said()) == (1, ["node n1 still has branch:0"])
    done = cortex("drain", "--node", "here")
    assert (done.code, done.said()) == (0, ["node n1 drains: calls in flight are finished, no new ones begin"])
    cortex("drain", "--node", "n9", "--within", "1s").refused("there is no node, branch or worker called n9")


def test_all_that_is_ours_is_ended_the_cortex_first(cortex, there):
    done = cortex("down", "--json")
    assert done.code == 0, done.said()
    assert done.said()[-1] == "6 actors of the cluster ended; journals and results stay where they are"
    assert there.living == [] and there.cleared
    closed = [name for name, method, *_ in there.told if method == "close"]
    assert closed[0] == "cortex" and len(closed) == 6
    assert json.loads(done.out)["left"] == []


def test_nothing_runs_there(cortex, there):
    there.living = []
    assert cortex("drain", "--all").said() == ["no job runs there"]
    assert cortex("drain", "--node", "here", "--within", "1s").said() == [
        "no scheduler runs in the cluster: nothing to drain"
    ]
    assert cortex("down").code == 0


def test_what_makes_no_sense_is_one_line(cortex, monkeypatch):
    cortex("down").refused("actors need a cluster: give --cluster ADDRESS, or set RAY_ADDRESS")
    cortex("drain", "--all").refused("all jobs need a cluster: give --cluster ADDRESS")
    cortex("drain", "--all", "job").refused("nothing to drain: give a job, --node NAME, --branch NAME or --all")
    cortex("drain", "job", "--within", "1s").refused("--within is for --node and --all")
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    cortex("down", "--within", "soon").refused("--within: 'soon' is no duration")
