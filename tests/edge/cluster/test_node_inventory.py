"""Inventory of nodes over a scripted Ray: a node that dies while it is asked is left out."""

from __future__ import annotations

from typing import Any

import pytest

from actors.cluster.node_inventory import taken

ANSWER = {"python": "3.11.7", "ray": "2", "cortex": "0.1.0", "packages": {}}


class ScriptedRay:
    """The calls of Ray that an inventory makes. ``after``: nodes that are alive once the tasks have ended."""

    def __init__(self, answers: dict[str, Any], after: set[str]) -> None:
        self._answers, self._after = answers, after
        self._listed = 0

    def nodes(self) -> list[dict[str, Any]]:
        self._listed += 1
        alive = set(self._answers) if self._listed == 1 else self._after
        return [{"NodeID": node, "NodeManagerAddress": f"at-{node}", "Alive": node in alive} for node in self._answers]

    def remote(self, _: Any) -> Any:
        return self

    def options(self, *, scheduling_strategy: str, **_: Any) -> Any:
        class Task:
            @staticmethod
            def remote(_: Any) -> str:
                return scheduling_strategy

        return Task()

    def wait(self, references: list[str], **_: Any) -> tuple[list[str], list[str]]:
        ready = [each for each in references if self._answers[each] is not None]
        return ready, [each for each in references if each not in ready]

    def get(self, reference: str) -> dict[str, Any]:
        answer = self._answers[reference]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)


@pytest.mark.parametrize("answer", [None, RuntimeError("the node died")], ids=["silent", "failed"])
@pytest.mark.parametrize("lives", [True, False])
def test_a_node_without_an_answer_is_reported_while_ray_lists_it(answer: Any, lives: bool) -> None:
    ray = ScriptedRay({"a": ANSWER, "b": answer}, {"a", "b"} if lives else {"a"})
    found = taken(ray, lambda node, soft: node, (), 1.0)
    assert [(each.node, bool(each.trouble)) for each in found] == [("a", False), *([("b", True)] if lives else [])]
