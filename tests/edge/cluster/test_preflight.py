"""A Ray that does not let a driver in, or has no node where the driver is: said in one line, before anything is begun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.cluster import preflight
from actors.cluster.preflight import refusal, see_admitted, see_usable
from actors.ports.runtime import ClusterError

REFUSED = "RPC error: InvalidAuthToken: Authentication token is missing or incorrect. Note: ..."
ADMITTED = "RPC error: WrongClusterID: Perhaps the client is accessing GCS after it has restarted."
TOKEN = {"RAY_AUTH_MODE": "token"}


@pytest.mark.parametrize(
    ("environ", "has_token", "said", "why"),
    [
        ({}, False, ADMITTED, ""),
        (TOKEN, True, ADMITTED, ""),
        (TOKEN, True, "", ""),
        ({}, True, "whatever another release says", ""),
        ({}, False, REFUSED, "asks for a token: set RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_MODE": "disabled"}, True, REFUSED, "asks for a token"),
        (TOKEN, True, REFUSED, "refuses the token"),
        (TOKEN, False, "", "there is no token"),
        ({"RAY_AUTH_MODE": "TOKEN"}, False, ADMITTED, "there is no token"),
    ],
)
def test_who_is_let_in(environ: dict[str, str], has_token: bool, said: str, why: str) -> None:
    text = refusal("head:6379", environ, has_token, said)
    assert why in text and bool(why) == bool(text) and "\n" not in text


class Head:
    """A head that answers each question with these words."""

    def __init__(self, said: str) -> None:
        self.said = said
        self.asked = 0

    def __call__(self, address: str, cluster_id: str) -> Any:
        return self

    def internal_kv_keys(self, *_: Any, timeout: float) -> None:
        self.asked += 1
        raise RuntimeError(self.said + "\n" + "a stack trace")


def test_without_a_token_to_give_the_head_is_not_asked() -> None:
    """Ray ends a process that has announced a token and has none."""
    head = Head(ADMITTED)
    with pytest.raises(ClusterError, match="there is no token"):
        see_admitted("head:6379", TOKEN, False, head, lambda: {"n"})
    assert head.asked == 0


def test_a_machine_without_a_node_is_told_what_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "NODE_S", 0.0)
    see_admitted("head:6379", {}, False, Head(ADMITTED), lambda: {"n"})
    with pytest.raises(ClusterError, match="`ray start --address=head:6379`"):
        see_admitted("head:6379", {}, False, Head(ADMITTED), set)
    with pytest.raises(ClusterError, match="asks for a token"):
        see_admitted("head:6379", {}, False, Head(REFUSED), set)
    see_admitted("ray://head:10001", {}, False, Head(REFUSED), set)


def test_nodes_of_another_user_are_no_way_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sockets = {str(tmp_path / "one"), str(tmp_path / "two")}
    mine: set[str] = set()
    monkeypatch.setattr(preflight.os, "access", lambda path, mode: path in mine)
    with pytest.raises(ClusterError, match=r"another user: work as that user, or connect by ray://host:10001"):
        see_usable("head:6379", sockets)
    see_usable("head:6379", set())
    see_usable("ray://head:10001", sockets)
    mine.add(str(tmp_path / "two"))
    see_usable("head:6379", sockets)


def test_a_node_that_is_just_starting_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_LOOK_S", 0.0)
    looks = iter([set(), set(), {"n"}])
    see_admitted("head:6379", {}, False, Head(ADMITTED), lambda: next(looks))
