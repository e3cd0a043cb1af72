"""``convex``: whether a deeply composed function is convex, concave or neither, asked in four ways.

The task of Liu et al., ConvexBench, 2026. A function is a composition of atoms such as ``exp(square(x))``, and its
curvature follows from its parts by the rules of disciplined convex programming (Grant, Boyd and Ye, 2006). The four:

    one-shot   one call reads the whole function
    tree       one call reads its syntax tree, taken apart by code, one line per node
    history    one call per node, each with all questions and answers before it
    focused    one call per node, each with the results of its direct dependencies and nothing else

Parsing, order and dependencies are done by code; only the judgement of a node is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from cortex.state.changes import Ask, Change, Emit, Resolve, Vote, Wait
from cortex.state.program import Program
from cortex.state.state import Goal, State
from cortex.values.prompt import Part, Prompt, Role
from cortex.values.reply import Malformed, Reply

Method = Literal["one-shot", "tree", "history", "focused"]

ATOMS = {
    "exp": "convex, increasing, nonnegative",
    "log": "concave, increasing, either",
    "sqrt": "concave, increasing, nonnegative",
    "square": "convex, increasing where nonnegative and decreasing where nonpositive, nonnegative",
    "abs": "convex, increasing where nonnegative and decreasing where nonpositive, nonnegative",
    "pos": "convex, increasing, nonnegative",
    "negpart": "convex, decreasing, nonnegative",
    "inverse": "convex, decreasing, nonnegative",
    "logistic": "convex, increasing, nonnegative",
    "entropy": "concave, not monotone, either",
    "minus": "affine, decreasing, opposite",
    "double": "affine, increasing, same",
    "plus": "affine, increasing, same",
    "max": "convex, increasing, greatest",
    "min": "concave, increasing, least",
}
"""Properties of the atoms: curvature, where they increase, and sign; for the last five the sign depends on the
arguments."""

RULES = (
    "A function made of an atom and its arguments is convex if the atom is convex or affine and every argument is"
    " affine, or convex where the atom increases, or concave where it decreases. It is concave if the atom is concave"
    " or affine and every argument is affine, or concave where the atom increases, or convex where it decreases. It is"
    " affine if both hold, else neither."
)
FORM = "Answer for {} with curvature (affine, convex, concave or neither) and sign, in this form: curvature, sign"
REPLY_TOKENS_MAX = 30
VARIABLE = "x: affine, either"

_ANSWER = re.compile(r"(affine|convex|concave|neither), (nonnegative|nonpositive|either)")
_TOKEN = re.compile(r"[a-z]+|[(),]")


class AtomNode(NamedTuple):
    """Application of an atom. Arguments are ``x`` or the names of earlier nodes."""

    name: str
    atom: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} = {self.atom}({', '.join(self.arguments)})"


class Convex(Program, frozen=True):
    """Judge ``functions`` by a ``method``; each answer is decided by a vote with lead ``k`` (1: a single call)."""

    name: ClassVar[str] = "convex"
    keeps: ClassVar[bool] = False
    rows_are_goals: ClassVar[bool] = False

    functions: tuple[str, ...]
    method: Method = "focused"
    k: int = 1

    def begin(self, k: State) -> Iterable[Change]:
        """Yield a goal for each function: its position and its text. Raises ``ValueError`` for an invalid function."""
        for place, text in enumerate(self.functions):
            nodes_of(text)
            yield Goal("function", [place, text])

    def select(self, k: State) -> Iterable[Ask | Vote | Change]:
        """Yield the nodes whose dependencies are known; or the single call that reads the whole function."""
        for goal in k.open("node"):
            yield self._asked(goal, self._node_prompt(k, goal))
        for goal in k.open("function"):
            nodes = nodes_of(goal.value[1])
            if self.method in ("one-shot", "tree"):
                yield self._asked(goal, whole_prompt(goal.value[1], nodes, tree=self.method == "tree"))
                continue
            known = {child.value[0]: child.answer for child in k.children(goal)}
            if nodes[-1].name in known:
                yield from self._judged(goal, known[nodes[-1].name])
                continue
            ready = [n for n in nodes if n.name not in known and all(a == "x" or a in known for a in n.arguments)]
            for node in ready[:1] if self.method == "history" else ready:
                yield Goal("node", list(node), parent=goal.id)
            yield Wait(goal)

    def _asked(self, goal: Goal, prompt: Prompt) -> Ask | Vote:
        if self.k == 1:
            return Ask(goal, prompt, output_tokens_max=REPLY_TOKENS_MAX)
        return Vote(goal, prompt, k=self.k, output_tokens_max=REPLY_TOKENS_MAX)

    def _node_prompt(self, k: State, goal: Goal) -> Prompt:
        node = _node(goal)
        siblings = [child for child in k.children(k.goals[goal.parent]) if child.answer is not None]
        known = {child.value[0]: child.answer for child in siblings}
        before = [(_node(child), child.answer) for child in siblings] if self.method == "history" else []
        return node_prompt(node, known, before)

    def ballot(self, k: State, goal: Goal, reply: Reply) -> str:
        """Return curvature and sign, if the reply is these and nothing else."""
        return judgement_of(reply.text)

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        """Take in the judgement of a node or of a whole function."""
        text = judgement_of(reply.text)
        if goal.kind == "node":
            yield Resolve(goal, text)
        else:
            yield from self._judged(goal, text)

    def _judged(self, goal: Goal, text: str) -> Iterable[Change]:
        yield Emit([goal.value[0], text.partition(",")[0]])
        yield Resolve(goal)

    def answer(self, k: State) -> dict[str, Any]:
        """Return the number of functions judged, and of calls; the judgements are the results."""
        return {"functions": k.emitted, "calls": k.tally.calls}


def _node(goal: Goal) -> AtomNode:
    name, atom, arguments = goal.value
    return AtomNode(name, atom, tuple(arguments))


# -- prompts --------------------------------------------------------------------------------------------------------


def whole_prompt(text: str, nodes: Sequence[AtomNode], tree: bool) -> Prompt:
    """Return the prompt for a whole function; ``tree``: as its nodes, in order."""
    message = "\n".join(map(str, nodes)) if tree else f"f = {text}"
    return _prompt("tree" if tree else "one-shot", nodes, [message], nodes[-1].name if tree else "f")


def node_prompt(node: AtomNode, known: dict[str, str], before: Sequence[tuple[AtomNode, str]]) -> Prompt:
    """Return the prompt for one node with the results of its arguments; ``before``: earlier questions and answers."""
    history = [f"Question: what is {each.atom} of {', '.join(each.arguments)}, named {each.name}?\n\nAnswer: {text}"
               for each, text in before]  # fmt: skip
    facts = [f"{name}: {known[name]}" for name in dict.fromkeys(node.arguments) if name != "x"]
    nodes = [each for each, _ in before] + [node]
    return _prompt("history" if before else "focused", nodes, [*history, "\n".join([str(node), *facts])], node.name)


def _prompt(constructor: str, nodes: Sequence[AtomNode], lines: Sequence[str], target: str) -> Prompt:
    used = {node.atom for node in nodes}
    atoms = "\n".join(f"{name}: {ATOMS[name]}" for name in ATOMS if name in used)
    variable = [VARIABLE] if any("x" in node.arguments for node in nodes) else []
    text = (RULES, "\n".join([f"Atoms\n{atoms}", *variable]), *lines, FORM.format(target))
    return Prompt(constructor, tuple(Part(Role.GOAL, each) for each in text))


# -- functions ------------------------------------------------------------------------------------------------------


def judgement_of(text: str) -> str:
    """Return the reply if it is a curvature and a sign. Raises ``Malformed`` for any other text."""
    if _ANSWER.fullmatch(text) is None:
        raise Malformed(f"no judgement: {text[:60]!r}")
    return text


def nodes_of(text: str) -> list[AtomNode]:
    """Parse a function into its nodes, each after its dependencies; equal parts are one node.

    Raises ``ValueError`` for a text that is no composition of known atoms.
    """
    nodes: dict[tuple[str, tuple[str, ...]], AtomNode] = {}
    open_: list[tuple[str, list[str]]] = [("", [])]
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text.replace(" ", ""):
        raise ValueError(f"no function: {text[:60]!r}")
    for at, token in enumerate(tokens):
        if token in ATOMS and tokens[at + 1 : at + 2] == ["("]:
            open_.append((token, []))
        elif token == "x":
            open_[-1][1].append(token)
        elif token == ")" and len(open_) > 1 and open_[-1][1]:
            atom, arguments = open_.pop()
            key = (atom, tuple(arguments))
            node = nodes.setdefault(key, AtomNode(f"t{len(nodes) + 1}", *key))
            open_[-1][1].append(node.name)
        elif token not in ("(", ","):
            raise ValueError(f"no function, at {token!r}: {text[:60]!r}")
    if len(open_) > 1 or len(open_[0][1]) != 1 or not nodes:
        raise ValueError(f"no function: {text[:60]!r}")
    return list(nodes.values())
