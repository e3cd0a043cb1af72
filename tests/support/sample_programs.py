"""Small programs for property tests of the core: functions of K and of the model's answers only."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, ClassVar

from cortex.state.changes import Abandon, Ask, Change, Emit, Fail, Observe, Reopen, Resolve, RunTool, Spawn, Vote, Wait
from cortex.state.program import Program, tool
from cortex.state.state import Goal, Item, State, Status
from cortex.values.reply import Malformed, Reply
from policies.decisions.join import Join
from policies.failures.failure import Failure
from tests.support.state_machine_harness import Flat, prompt

LEAVES_MAX = 3


def digest(*parts: object) -> int:
    """Return a pseudo-random number that is determined by these parts."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=6).digest(), "big")


@tool(repeatable=True)
def read(**_: Any) -> None:
    """Tool that never runs: the test's environment answers for it."""


@tool()
def deed(**_: Any) -> None:
    """Tool that never runs, and must not be repeated."""


class Planner(Program, frozen=True):
    """Program that plans by asking, down to a depth; merges by code, and by asking at the top. Every join is ``all``.

    A leaf's reply also becomes an item, and some replies are rejected and asked again.
    """

    roots: tuple[str, ...] = ("r",)
    deep: int = 3

    def begin(self, k: State) -> Iterable[Change]:
        for root in self.roots:
            yield Goal("node", root)

    def select(self, k: State) -> Iterable[Any]:
        for goal in k.open("node"):
            if not goal.children:
                yield Ask(goal, prompt(f"plan {goal.value}", "planning"))
            elif goal.parent:
                yield Resolve(goal, [child.answer for child in k.children(goal)])
            else:
                text = " ".join(str(child.answer) for child in k.children(goal))
                yield Ask(goal, prompt(f"merge {text}", "merging"))

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        if reply.text.startswith("?"):
            raise Malformed("a question is no answer")
        word, _, count = reply.text.partition(":")
        if word == "split" and not goal.children and goal.depth < self.deep:
            for index in range(int(count)):
                yield Goal("node", f"{goal.value}.{index}", parent=goal.id)
            yield Wait(goal, Join("all"))
            return
        yield Item("leaf", f"{goal.value}={reply.text}", lossy=True)
        yield Emit(f"{goal.value}: {reply.text}")
        yield Resolve(goal, reply.text)


class Voter(Program, frozen=True):
    """Program with several samples of one question, under a join; the first to arrive decide."""

    questions: tuple[str, ...] = ("q",)
    votes: int = 3
    kind: str = "majority"

    def begin(self, k: State) -> Iterable[Change]:
        for question in self.questions:
            yield Goal("question", question)

    def select(self, k: State) -> Iterable[Any]:
        for goal in k.open("question"):
            if goal.children:
                parts = [child.answer for child in k.children(goal) if child.status == Status.RESOLVED]
                yield Resolve(goal, sorted(parts)) if parts else Fail(goal, "nobody voted")
                continue
            for index in range(self.votes):
                yield Goal("vote", [goal.value, index], parent=goal.id)
            yield Wait(goal, Join(self.kind, 2 if self.kind == "quorum" else 0), 40.0)  # type: ignore[arg-type]
        for goal in k.open("vote"):
            yield Ask(goal, prompt(f"vote {goal.value[0]}"), sample=str(goal.value[1]))

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        yield Resolve(goal, reply.text)


class Nester(Program, frozen=True):
    """Program of nested joins, each with its own deadline. Its results say whether a join was met or is partial."""

    roots: tuple[str, ...] = ("r",)
    groups: tuple[str, ...] = ("any", "majority", "all")
    leaves: int = 3
    group_s: float = 4.0
    root_s: float = 10.0

    def begin(self, k: State) -> Iterable[Change]:
        for root in self.roots:
            yield Goal("root", root)

    def select(self, k: State) -> Iterable[Any]:
        for goal in k.open("root"):
            if goal.children:
                yield from self._merged(k, goal)
                continue
            for group in self.groups:
                yield Goal("group", group, parent=goal.id)
            yield Wait(goal, Join("quorum", 2), self.root_s)
        for goal in k.open("group"):
            if goal.children:
                yield from self._merged(k, goal)
                continue
            for leaf in range(self.leaves):
                yield Goal("leaf", f"{goal.id}.{leaf}", parent=goal.id)
            yield Wait(goal, Join(goal.value), self.group_s)
        for goal in k.open("leaf"):
            yield Ask(goal, prompt(f"leaf {goal.value}"))

    def _merged(self, k: State, goal: Goal) -> Iterable[Change]:
        lines = sorted(str(child.answer) for child in k.children(goal) if child.status == Status.RESOLVED)
        yield Emit(f"{goal.value}: {'partial' if goal.partial else 'met'}")
        yield Resolve(goal, {"partial": goal.partial, "said": lines})

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        yield Resolve(goal, reply.text)


class Elector(Program, frozen=True):
    """Program that votes on questions, one after another in each of several chains; some replies are red flags."""

    chains: tuple[str, ...] = ("p", "q")
    length: int = 3
    ahead: int = 2

    def begin(self, k: State) -> Iterable[Change]:
        for chain in self.chains:
            yield Goal("link", [chain, 0, ""])

    def select(self, k: State) -> Iterable[Any]:
        for goal in k.open("link"):
            chain, place, last = goal.value
            yield Vote(goal, prompt(f"elect {chain} {place} {last}"), k=self.ahead)

    def ballot(self, k: State, goal: Goal, reply: Reply) -> str:
        if reply.text.startswith("?"):
            raise Malformed("a question is no vote")
        return reply.text

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        chain, place, _ = goal.value
        yield Emit([chain, place, reply.text])
        yield Resolve(goal, reply.text)
        if place + 1 < self.length:
            yield Goal("link", [chain, place + 1, reply.text])


class Caster(Program, frozen=True):
    """Program whose drafts are written by the job's own model and judged by its judge: by a call, a vote, or a child
    job.
    """

    drafts: tuple[str, ...] = ("p", "q", "r")
    spawns: bool = True

    def begin(self, k: State) -> Iterable[Change]:
        for draft in self.drafts:
            yield Goal("draft", draft)

    def select(self, k: State) -> Iterable[Any]:
        for goal in k.open("draft"):
            yield Ask(goal, prompt(f"draft {goal.value}"))
        for goal in k.open("judgement"):
            text = prompt(f"judge {goal.value}")
            way = digest(goal.value) % 5
            if way == 0 and self.spawns:
                yield Spawn(goal, Caster((f"{goal.value}'",), False))
            elif way < 3:
                yield Vote(goal, text, k=2, role="judge")
            else:
                yield Ask(goal, text, role="judge")

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        if goal.kind == "draft":
            yield Goal("judgement", f"{goal.value}: {reply.text}")
        yield Resolve(goal, reply.text)


class Watcher(Program, frozen=True):
    """Program that asks about a page that must be fresh; every third reply runs a tool, every fourth a child job."""

    tools: ClassVar[dict[str, Any]] = {"read": read, "deed": deed}

    asks: int = 4
    trust_s: float = 3.0

    def begin(self, k: State) -> Iterable[Change]:
        for index in range(self.asks):
            yield Goal("ask", index)

    def select(self, k: State) -> Iterable[Any]:
        for goal in k.open("ask"):
            page = next(iter(k.items_of("page")), None)
            if page is None:
                if not k.items:
                    yield Observe(goal, "page", "read", {"name": "page"}, self.trust_s)
                    return
                continue
            yield Ask(goal, prompt(f"about {page.value}: {goal.value}"), uses=(page,))

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        if goal.value % 3 == 2:
            yield RunTool(goal, "read" if digest(reply.text) % 2 else "deed", {"for": goal.value})
        elif goal.value % 4 == 3:
            yield Spawn(goal, Flat(texts=(reply.text,)))
        else:
            yield Resolve(goal, reply.text)


class Chaos(Program, frozen=True):
    """Program that yields anything that a program may yield, and much that it must not; determined by goal and tries.
    """

    tools: ClassVar[dict[str, Any]] = {"read": read, "deed": deed}

    seed: int = 0
    goals_max: int = 25

    def begin(self, k: State) -> Iterable[Change]:
        for index in range(4):
            yield Goal("a" if index % 2 else "b", f"v{index % 3}")

    def select(self, k: State) -> Iterable[Any]:
        for goal in list(k.open()):
            chance = digest(self.seed, "select", goal.id, goal.tries, goal.too_large) % 40
            if chance == 0 and k.next_goal < self.goals_max:
                yield Goal("a", f"more {goal.id}")
            elif chance == 1:
                yield RunTool(goal, "read", {})
                continue
            elif chance == 2:
                yield Observe(goal, "page", "read", {"of": goal.id}, float(goal.id % 3))
                continue
            elif chance == 3:
                yield Spawn(goal, Flat(), 10**9 if goal.id % 2 else None)
                continue
            elif chance == 4:
                yield Wait(goal, Join("any"), 5.0)
                continue
            text = "long " * 400 if chance == 5 else f"{goal.value}"
            yield Ask(goal, prompt(text), uses=tuple(k.items.values())[:2] if chance > 30 else ())

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        return self._anything(k, goal, "absorb")

    def absorbed(self, k: State, goal: Goal, value: Any) -> Iterable[Change]:
        return self._anything(k, goal, "absorbed")

    def failed(self, k: State, goal: Goal, failure: Failure) -> Iterable[Change]:
        if digest(self.seed, "failed", goal.id) % 3:
            return [Fail(goal, failure.message)]
        return self._anything(k, goal, "failed")

    def satisfied(self, k: State) -> bool:
        return k.live == 0 and k.source_ended

    def _anything(self, k: State, goal: Goal, where: str) -> list[Change]:
        chance = digest(self.seed, where, goal.id, goal.tries, goal.sample) % 100
        other = k.goals.get(1 + chance % max(1, len(k.goals)), goal)
        room = k.next_goal < self.goals_max
        children: list[Change] = [Goal("c", f"c{goal.id}", parent=goal.id) for _ in range(chance % 4)] if room else []
        joins = [Join("all"), Join("any"), Join("majority"), Join("quorum", 2)]
        if chance < 3:
            raise KeyError(where)
        if chance < 8:
            raise Malformed("not this time")
        if chance < 12:
            return [Emit("before"), Resolve(goal, object())]
        if chance < 16:
            return [Resolve(goal, 1), Resolve(goal, 2)]
        if chance < 20:
            return []
        if chance < 30:
            return [*children, Wait(goal, joins[chance % 4], None if chance % 2 else 7.0)]
        if chance < 36 and goal.tries < 9:
            return [Reopen(goal, resample=chance % 2 == 0)]
        if chance < 42:
            return [Resolve(goal, chance), *([Abandon(other)] if other is not goal else [])]
        if chance < 48:
            return [Resolve(goal, chance), *([Fail(other, "along")] if other is not goal else [])]
        if chance < 54:
            return [RunTool(goal, "deed" if chance % 2 else "read", {"by": goal.id})]
        if chance < 58:
            return [Spawn(goal, Flat())]
        if chance < 64:
            return [Item("thing", {"of": goal.id}, sources=tuple(k.items)[:1]), Emit({"a": (1, {2})}), Resolve(goal)]
        return [*children, Resolve(goal, f"{chance}")]
