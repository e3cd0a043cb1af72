"""Nodes of a Ray that cannot run what a driver begins: said in one line, before anything is; asked once of each node."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from msgspec.structs import replace

from actors.cluster.compatibility import installed_here, mismatch_line, needs_of, see_fitting
from actors.cluster.node_inventory import NodeReport
from actors.ports.runtime import ClusterError
from actors.runtime.host import LocalNotes

HERE = installed_here()
SAME = NodeReport(
    node="n1", address="10.0.0.1", ray=HERE.ray, python=HERE.python, cortex=HERE.cortex,
    packages={**HERE.packages, "boto3": "1.40"},
)  # fmt: skip
MISMATCH = """Version mismatch: The cluster was started with:
    Ray: {}
    Python: {}
This process on node 10.0.0.1 was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""


class Nodes:
    """A Ray whose nodes tell this."""

    def __init__(self, *told: NodeReport) -> None:
        self.told = {each.node: each for each in told}
        self.asked: list[str] = []
        self.notes = LocalNotes()

    def ask(self, known: Collection[str]) -> list[NodeReport]:
        found = [each for name, each in self.told.items() if name not in known]
        self.asked += [each.node for each in found]
        return found

    def see(self, *needs: str, paths: tuple[str, ...] = ()) -> None:
        see_fitting("h:1", HERE, needs, paths, tuple(self.told), self.notes, self.ask)


def test_a_node_that_fits_is_asked_once_and_a_new_one_when_it_comes() -> None:
    nodes = Nodes(SAME)
    nodes.see()
    nodes.see("boto3")
    assert nodes.asked == ["n1"]
    nodes.told["n2"] = replace(SAME, node="n2")
    nodes.see()
    assert nodes.asked == ["n1", "n2"]
    nodes.see(paths=("/elsewhere",))
    assert nodes.asked == ["n1", "n2", "n1", "n2"], "with other code at hand a node may have other releases"


def test_a_node_that_was_mended_is_asked_again() -> None:
    nodes = Nodes(SAME, replace(SAME, node="n2", cortex="0.0.1"))
    with pytest.raises(ClusterError):
        nodes.see()
    nodes.told["n2"] = replace(SAME, node="n2")
    nodes.see()
    assert nodes.asked == ["n1", "n2", "n2"]


@pytest.mark.parametrize(
    ("node", "needs", "why"),
    [
        (replace(SAME, cortex="0.0.1"), (), "node 10.0.0.1 has cortex 0.0.1, here"),
        (replace(SAME, python="3.9.1"), (), "Python 3.9.1, here"),
        (replace(SAME, packages={**SAME.packages, "boto3": ""}), ("boto3",), "no boto3, which this job needs there"),
        (replace(SAME, packages={}, cortex="", trouble="cortex cannot be imported there: ModuleNotFoundError"), (), "no cortex (cortex cannot"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_in_one_line(node: NodeReport, needs: tuple[str, ...], why: str) -> None:
    with pytest.raises(ClusterError) as caught:
        Nodes(SAME, replace(node, node="n2")).see(*needs)
    text = str(caught.value)
    assert why in text and text.startswith("h:1 does not fit") and "\n" not in text
    if needs:
        Nodes(SAME, replace(node, node="n2")).see()


def test_of_many_nodes_two_are_named() -> None:
    with pytest.raises(ClusterError, match="so 3 more") as caught:
        Nodes(*(replace(SAME, node=f"n{number}", cortex="0.0.1") for number in range(5))).see()
    assert str(caught.value).count("cortex 0.0.1") == 2


def test_a_node_that_is_busy_keeps_nobody_away() -> None:
    Nodes(SAME, NodeReport(node="n2", address="10.0.0.2", trouble="it ran nothing within 20 s")).see("boto3")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (MISMATCH.format("2.55.0", "3.11.7"), "Ray 2.55.0, here 2.60.0"),
        (MISMATCH.format("2.55.0", "3.12.1"), "Ray 2.55.0, here 2.60.0; Python 3.12.1, here 3.11.7"),
        (MISMATCH.format("2.60.0", "3.11.9"), "Python 3.11.9, here 3.11.7"),
        ("Failed to connect", ""),
        ("Version mismatch: of something else", ""),
    ],
)
def test_rays_own_words_are_told_in_one_line(said: str, told: str) -> None:
    assert mismatch_line(said) == told


def test_what_jobs_need_on_nodes() -> None:
    assert needs_of((), ".cortex") == ()
    assert needs_of({"anthropic"}, "/x") == ()
    assert needs_of((), ".cortex", "postgres://limits/d") == ("psycopg",)
    assert needs_of({"vertex", "bedrock"}, "postgresql://h/d", "") == ("boto3", "google-auth", "psycopg")
