"""Whether a job goes on in a cluster without a driver: one whose channel comes back by itself does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.api import session as module
from actors.api.session import JobInUse, Session
from actors.jobs.spec import JobSpec
from actors.journal.journal import StoreError
from actors.ports.runtime import ChannelNotStarted, PeerGone, PeerUnavailable
from cortex.programs.batch import Batch


class Cluster:
    """A cluster with one channel, that answers so, one after the other."""

    cluster = "127.0.0.1:1"
    name = "channel:j"
    state = ""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.ended: list[str] = []
        self.killed: list[str] = []
        self.awaited: list[str] = []
        """The hosts that it waits for, one look after the other."""

    async def awaits(self, name: str) -> str:
        return self.awaited.pop(0) if self.awaited else ""

    async def kill_actor(self, name: str) -> None:
        self.killed.append(name)

    def peer(self, name: str) -> Any:
        return self

    async def ask(self, method: str) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        facts = {"outcome": answer, "broken": "", "stopping": ""} | ({"state": self.state} if self.state else {})
        if answer in ("drain", "cancel"):
            facts |= {"outcome": "running", "stopping": answer}
        return msgspec.json.encode(facts)

    async def end_actor(self, name: str) -> None:
        self.ended.append(name)


@pytest.mark.parametrize(
    ("answers", "lives", "ended"),
    [
        (["running"], True, []),
        ([PeerUnavailable(), PeerUnavailable(), "running"], True, []),
        ([PeerUnavailable(), PeerGone()], False, []),
        ([ChannelNotStarted()], False, []),
        ([PeerUnavailable(), StoreError("it could not be begun again: its journal is empty")], False, []),
        (["partial"], False, ["channel:j"]),
        (["drain", "drain", "partial"], False, ["channel:j"]),
        (["cancel", "cancelled"], False, ["channel:j"]),
        (["drain", PeerUnavailable(), PeerGone()], False, []),
        (["drain", "running"], True, []),
    ],
)
async def test_a_channel_that_comes_back_by_itself_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[Any], lives: bool, ended: list[str]
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    cluster = Cluster(*answers)
    session = Session(JobSpec(program=Batch(), job="j", state=str(tmp_path)), {})
    assert await session._lives(cluster) is lives
    assert cluster.ended == ended and not cluster.answers


async def test_one_of_another_state_folder_is_another_job(tmp_path: Path) -> None:
    """To attach to it would mix the rows of two inputs."""
    cluster = Cluster("running", "running", "partial")
    session = Session(JobSpec(program=Batch(), job="j", state=str(tmp_path)), {})
    cluster.state = str(tmp_path)
    assert await session._lives(cluster)
    cluster.state = "/another/state"
    with pytest.raises(JobInUse, match=r"another job j, of /another/state, runs on .*: give another --job"):
        await session._lives(cluster)
    assert not await session._lives(cluster) and cluster.ended == ["channel:j"], "one that has ended makes way"


async def test_it_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    monkeypatch.setattr(module, "COMING_BACK_S", 0.01)
    session = Session(JobSpec(program=Batch(), job="j", state=str(tmp_path)), {})
    assert not await session._lives(Cluster(*[PeerUnavailable()] * 1_000))


@pytest.mark.parametrize("looks", [["10.0.0.2"], ["", "10.0.0.2"]])
async def test_one_that_waits_for_another_host_makes_way_where_its_journal_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[str]
) -> None:
    """Its disk was brought here: the host that it waits for may never come back."""
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    cluster = Cluster(*[PeerUnavailable()] * 3)
    cluster.awaited = looks
    session = Session(JobSpec(program=Batch(), job="j", state=str(tmp_path)), {})
    assert not await session._lives(cluster)
    assert cluster.killed == ["channel:j"] and not cluster.ended
