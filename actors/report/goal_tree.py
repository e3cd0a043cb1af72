"""Tree of the goals that K keeps, small enough for a page: at each level the dearest, slowest and most failed goals."""

from __future__ import annotations

import heapq
from itertools import count
from typing import NamedTuple

import msgspec

from actors.history.annotated_turns import JournalReader
from actors.report.counters import GoalTrack
from actors.report.figures import ReportFigures
from actors.report.labels import name_of
from cortex.state.state import Goal, Status
from cortex.values.election import VOTE

NODES_MAX = 800
"""Most nodes of a page."""
CHILDREN_MAX = 10
"""Most children shown of one goal, by each measure."""


class GoalKey(NamedTuple):
    """Key of a goal among those of a job and its child jobs."""

    job: str
    goal: int


class GoalNode(msgspec.Struct):
    """Goal with the sums of its subtree."""

    key: GoalKey
    name: str
    kind: str
    status: str
    goals: int = 1
    """Goals of the subtree, itself included; the following figures are of the subtree, too."""
    failed_goals: int = 0
    attempts: int = 0
    failed: int = 0
    known_nusd: int = 0
    busy_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    message: str = ""
    children: list[int] = msgspec.field(default_factory=list)
    """Indexes, in the list of all nodes, of the children shown."""
    more: int = 0
    """Children not shown."""
    more_nusd: int = 0
    parent: int = -1

    @property
    def took_s(self) -> float:
        """Seconds from the first call in the subtree to the last answer."""
        return max(0.0, self.last_s - self.first_s)


class _GoalForest:
    """All goals and their children."""

    def __init__(self, readings: list[JournalReader], figures: ReportFigures) -> None:
        self.goals: dict[GoalKey, Goal] = {}
        self.children: dict[GoalKey, list[GoalKey]] = {}
        self.tops: list[GoalKey] = []
        own = readings[0].name
        for reading in readings:
            if reading.k is None:
                continue
            name, _, number = reading.name.rpartition("~")
            home = GoalKey(name, int(number)) if reading.name != own and number.isdecimal() else None
            for goal in reading.k.goals.values():
                if goal.kind == VOTE:
                    continue
                key = GoalKey(reading.name, goal.id)
                self.goals[key] = goal
                above = GoalKey(reading.name, goal.parent) if goal.parent else home
                if above is None:
                    self.tops.append(key)
                else:
                    self.children.setdefault(above, []).append(key)
        self.tops += [key for above, below in self.children.items() if above not in self.goals for key in below]
        self._figures = figures
        self.nodes: dict[GoalKey, GoalNode] = {}
        for key in self.tops:
            self._sum(key)

    def _sum(self, top: GoalKey) -> None:
        """Sum the subtree of a top goal, without recursion, so that any depth is possible."""
        order, stack = [], [top]
        while stack:
            key = stack.pop()
            order.append(key)
            stack += self.children.get(key, ())
        for key in reversed(order):
            node = self.nodes[key] = self._node(key)
            for child in self.children.get(key, ()):
                _add(node, self.nodes[child])

    def _node(self, key: GoalKey) -> GoalNode:
        goal = self.goals[key]
        track = self._figures.own.get((key.job, key.goal)) or GoalTrack(key.job, key.goal)
        failed = goal.status == Status.FAILED
        name = "" if self._figures.unnamed else name_of(goal, goal.sample)
        text = f"{goal.failure.kind}: {goal.failure.message}"[:300] if failed and goal.failure is not None else ""
        return GoalNode(
            key, name, goal.kind, goal.status.name.lower(), 1, int(failed), track.attempts, track.failed,
            track.known_nusd, track.busy_s, track.first_s, track.last_s, text,
        )  # fmt: skip


def _add(node: GoalNode, below: GoalNode) -> None:
    node.goals += below.goals
    node.failed_goals += below.failed_goals
    node.attempts += below.attempts
    node.failed += below.failed
    node.known_nusd += below.known_nusd
    node.busy_s += below.busy_s
    node.first_s = min(node.first_s or below.first_s, below.first_s or node.first_s)
    node.last_s = max(node.last_s, below.last_s)


def tree(readings: list[JournalReader], figures: ReportFigures, nodes_max: int = NODES_MAX) -> list[GoalNode]:
    """Return the nodes that a page shows, the job itself first; ``children`` are indexes into the list. Empty if K
    keeps no goals."""
    grown = _GoalForest(readings, figures)
    if not grown.nodes:
        return []
    root = GoalNode(GoalKey(readings[0].name, 0), readings[0].name, "job", "", 0)
    for key in grown.tops:
        _add(root, grown.nodes[key])
    shown, turn = [root], count()
    waiting: list[tuple[float, int, int, list[GoalKey]]] = [(0.0, next(turn), 0, grown.tops)]
    while waiting and len(shown) < nodes_max:
        _, _, place, below = heapq.heappop(waiting)
        chosen = _chosen([grown.nodes[key] for key in below], nodes_max - len(shown))
        above = shown[place]
        above.more = len(below) - len(chosen)
        above.more_nusd = sum(grown.nodes[key].known_nusd for key in below) - sum(each.known_nusd for each in chosen)
        for node in chosen:
            node.parent = place
            above.children.append(len(shown))
            shown.append(node)
            if grown.children.get(node.key):
                weight = -(node.known_nusd / (root.known_nusd or 1) + node.busy_s / (root.busy_s or 1.0))
                heapq.heappush(waiting, (weight, next(turn), len(shown) - 1, grown.children[node.key]))
    for _, _, place, below in waiting:
        shown[place].more = len(below)
        shown[place].more_nusd = sum(grown.nodes[key].known_nusd for key in below)
    return shown


def _chosen(nodes: list[GoalNode], room: int) -> list[GoalNode]:
    """Return the largest few by each measure, by goal number."""
    if len(nodes) > CHILDREN_MAX:
        found: dict[GoalKey, GoalNode] = {}
        for measure in (_cost, _time, _failed):
            found |= {node.key: node for node in heapq.nlargest(CHILDREN_MAX, nodes, key=measure)}
        nodes = sorted(found.values(), key=lambda node: node.key.goal)
    return nodes[:room]


def _cost(node: GoalNode) -> float:
    return node.known_nusd


def _time(node: GoalNode) -> float:
    return node.took_s


def _failed(node: GoalNode) -> float:
    return node.failed_goals * 1_000_000 + node.failed
