"""Nodes in ``cortex status`` and ``cortex drain --node``: by the name of their pod or host, else by their id."""

from __future__ import annotations

from typing import Any

import pytest

from actors.cli.control import steer
from actors.cli.control.drain import node_named
from actors.cli.inspection.job_status import _live
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.common.process_owner import Owner
from actors.common.units import clock
from actors.driver.live_status import LiveStatus

IDS = ("ab" * 28, "cd" * 28, "ef" * 28)
OWNER = Owner(host="h", pid=1, started="", cluster="head:6379")


def _nodes(*hosts: str | None) -> dict[str, dict[str, Any]]:
    """Nodes of which the first is drained; None: told by a release that knows no names."""
    found = {}
    for node, host in zip(IDS, hosts, strict=False):
        found[node] = {"alive": True, "drained_by": "" if found else "ann"} | ({"host": host} if host is not None else {})
    return found


def _lines(nodes: dict[str, dict[str, Any]]) -> dict[str, str]:
    opened = {f"node:{IDS[0]}": {"state": "open", "until_s": 0.0, "why": "3 deaths"}}
    status = {"breakers": opened, "pools": {}, "staff": {}, "nodes": nodes}
    return dict(_live(LiveStatus(owner=OWNER, at_s=0.0, facts={}, cortex=status), 1.0))


@pytest.mark.parametrize(
    ("hosts", "name"),
    [
        (("branch-x7k2p", "branch-9qq4z"), "branch-x7k2p"),
        (("rack7", "rack7"), "rack7 (abababababab…)"),
        (("", "rack7"), "abababababab…"),
        ((None, None), "abababababab…"),
    ],
)
def test_a_node_of_the_status_is_called_by_its_pod_or_host(hosts: tuple[str | None, ...], name: str) -> None:
    lines = _lines(_nodes(*hosts))
    assert lines["nodes"] == f"1 up; {name} drained by ann"
    assert lines["breaker"] == f"node {name}: open (3 deaths)"


def test_a_lost_node_of_the_status_is_called_by_its_host_with_its_time() -> None:
    status = {"breakers": {}, "pools": {}, "staff": {}, "nodes": _nodes("vm", "vm")}
    status["nodes"][IDS[0]]["drained_by"] = ""
    status["lost"] = {IDS[2]: {"host": "pod-7", "at_s": 60.0}}
    lines = dict(_live(LiveStatus(owner=OWNER, at_s=0.0, facts={}, cortex=status), 100.0))
    assert lines["nodes"] == f"2 up; pod-7 lost at {clock(60.0)}, 40.0 s ago"
    status["lost"] = {IDS[2]: {"host": "vm", "at_s": 60.0}}
    lines = dict(_live(LiveStatus(owner=OWNER, at_s=0.0, facts={}, cortex=status), 100.0))
    assert "vm (efefefefefef…) lost at" in lines["nodes"], "its host lives"


def test_a_node_to_drain_is_found_by_its_pod_or_host_and_by_its_id() -> None:
    nodes = _nodes("branch-x7k2p", "rack7", "rack7")
    assert node_named("branch-x7k2p", nodes) == node_named(IDS[0], nodes) == IDS[0]
    assert node_named("no-such", nodes) == "no-such", "the scheduler says that there is none"
    assert node_named("", _nodes("", None)) == "", "no name is no node's"
    with pytest.raises(CommandError, match=f"2 nodes are on rack7: name one by its id: {IDS[1]}, {IDS[2]}"):
        node_named("rack7", nodes)


def test_the_scheduler_is_told_the_id_of_the_node_whose_pod_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, ...]] = []

    class Told:
        async def ask(self, method: str, *args: str) -> Any:
            told.append((method, *args[1:]))
            return {"nodes": _nodes("branch-x7k2p", "branch-9qq4z")}

    async def asked(cluster: str, send: Any) -> int:
        return int(await send(Told()))

    monkeypatch.setattr(steer, "asked_cortex", asked)
    options = Options(cluster="head:6379")
    for node, branch, subject in (("branch-x7k2p", "", IDS[0]), (IDS[1], "", IDS[1]), ("", "branch:1", "branch:1")):
        told.clear()
        assert steer.drain("", node, branch, False, "", False, options) == 0
        assert told == [("status",), ("drain", subject)]
