"""Curvature and sign of a composed function, derived by the composition rules from the atoms that the text states.

Only atoms and names that the text defines or describes are known.
"""

import re
from typing import Final, NamedTuple

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.thought import Thought

_CURVATURES: Final = ("affine", "convex", "concave", "neither")
_SIGNS: Final = ("nonnegative", "nonpositive", "either")
_ASKED: Final = re.compile(r"\banswer for (\w+) with curvature\b", re.IGNORECASE)
_ATOM: Final = re.compile(r"^(\w+): (affine|convex|concave), ([a-z ]+), (\w+)$", re.MULTILINE)
_FACT: Final = re.compile(r"^(\w+): (affine|convex|concave|neither), (nonnegative|nonpositive|either)$", re.MULTILINE)
_NAMED: Final = re.compile(r", named (\w+)\?\n\nAnswer: (affine|convex|concave|neither), (\w+)$", re.MULTILINE)
_DEFINED: Final = re.compile(r"^(\w+) = ([\w(), ]+)$", re.MULTILINE)
_PIECE: Final = re.compile(r"\w+|[(),]")
MISTAKEN: Final = {"convex": "concave", "concave": "neither", "neither": "convex", "affine": "convex"}
"""Curvature -> the curvature that a mistaken reader takes it for: always the same, the worst case for votes."""
_UP, _DOWN, _NEITHER_WAY = 1, -1, 0


class ConvexityFact(NamedTuple):
    """Known curvature and sign of a function."""

    curvature: str
    sign: str


def compose(reading: ParsedPrompt) -> Thought | None:
    """Return ``curvature, sign`` of the name that the text asks about."""
    text = reading.text
    asked = _ASKED.search(text) if "curvature" in text else None
    if asked is None:
        return None
    atoms = {name: (curvature, ways, sign) for name, curvature, ways, sign in _ATOM.findall(text)}
    facts = {
        name: ConvexityFact(curvature, sign) for name, curvature, sign in (*_NAMED.findall(text), *_FACT.findall(text))
    }
    for name, expression in _DEFINED.findall(text):
        fact = _worked_out(expression, atoms, facts)
        if fact is not None:
            facts[name] = fact
    found = facts.get(asked[1])
    if found is None:
        return None
    return Thought(", ".join(found), (f"{MISTAKEN[found.curvature]}, {found.sign}",))


def _worked_out(
    expression: str, atoms: dict[str, tuple[str, str, str]], facts: dict[str, ConvexityFact]
) -> ConvexityFact | None:
    """Evaluate a nested expression from the inside; None if it holds unknown names."""
    open_: list[tuple[str, list[ConvexityFact]]] = [("", [])]
    pieces = _PIECE.findall(expression)
    for piece, then in zip(pieces, [*pieces[1:], ""], strict=True):
        if then == "(" and piece in atoms:
            open_.append((piece, []))
        elif piece == ")" and len(open_) > 1:
            atom, arguments = open_.pop()
            open_[-1][1].append(_applied(*atoms[atom], arguments))
        elif piece in facts:
            open_[-1][1].append(facts[piece])
        elif piece not in ("(", ","):
            return None
    return open_[0][1][0] if len(open_) == 1 and len(open_[0][1]) == 1 else None


def _applied(curvature: str, ways: str, sign: str, arguments: list[ConvexityFact]) -> ConvexityFact:
    """Return the fact of an atom applied to its arguments."""
    convex = curvature in ("convex", "affine") and all(_fits(each, ways, "convex", "concave") for each in arguments)
    concave = curvature in ("concave", "affine") and all(_fits(each, ways, "concave", "convex") for each in arguments)
    made = "affine" if convex and concave else "convex" if convex else "concave" if concave else "neither"
    return ConvexityFact(made, _sign(sign, [each.sign for each in arguments]))


def _fits(argument: ConvexityFact, ways: str, going_up: str, going_down: str) -> bool:
    way = _way(ways, argument.sign)
    return argument.curvature == "affine" or argument.curvature == {_UP: going_up, _DOWN: going_down}.get(way)


def _way(ways: str, sign: str) -> int:
    if ways == "increasing":
        return _UP
    if ways == "decreasing":
        return _DOWN
    if f"increasing where {sign}" in ways:
        return _UP
    return _DOWN if f"decreasing where {sign}" in ways else _NEITHER_WAY


def _sign(rule: str, signs: list[str]) -> str:
    if rule in _SIGNS:
        return rule
    if rule == "opposite":
        return {"nonnegative": "nonpositive", "nonpositive": "nonnegative"}.get(signs[0], "either")
    if rule == "greatest" and "nonnegative" in signs:
        return "nonnegative"
    if rule == "least" and "nonpositive" in signs:
        return "nonpositive"
    return signs[0] if len(set(signs)) == 1 else "either"
