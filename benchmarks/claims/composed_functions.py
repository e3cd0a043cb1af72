"""Composed functions with known curvature, for ``convex``: generated from a seed, labelled by disciplined programming.

The labels are computed here; ``tests/unit/cortex/programs/test_convex_functions.py`` compares them with CVXPY's.
"""

from __future__ import annotations

import random
from typing import NamedTuple

LABELS = ("convex", "concave", "neither")


class Known(NamedTuple):
    """Function with its properties. ``curvature`` is affine, convex, concave or neither; ``sign`` is 1, -1 or 0."""

    text: str
    curvature: str
    sign: int


X = Known("x", "affine", 0)

# atom -> curvature, monotonicity for an argument of each sign (1, 0, -1), own sign (None: from the arguments)
ATOMS: dict[str, tuple[str, tuple[int, int, int], int | None]] = {
    "exp": ("convex", (1, 1, 1), 1),
    "log": ("concave", (1, 1, 1), 0),
    "sqrt": ("concave", (1, 1, 1), 1),
    "square": ("convex", (1, 0, -1), 1),
    "abs": ("convex", (1, 0, -1), 1),
    "pos": ("convex", (1, 1, 1), 1),
    "negpart": ("convex", (-1, -1, -1), 1),
    "inverse": ("convex", (-1, -1, -1), 1),
    "logistic": ("convex", (1, 1, 1), 1),
    "entropy": ("concave", (0, 0, 0), 0),
    "minus": ("affine", (-1, -1, -1), None),
    "double": ("affine", (1, 1, 1), None),
    "plus": ("affine", (1, 1, 1), None),
    "max": ("convex", (1, 1, 1), None),
    "min": ("concave", (1, 1, 1), None),
}
BINARY = ("plus", "max", "min")
SIDES = ("x", "exp(x)", "square(x)", "abs(x)", "logistic(x)", "log(x)", "sqrt(x)", "minus(exp(x))", "minus(square(x))")
"""Second arguments of atoms with two arguments."""


def applied(atom: str, *arguments: Known) -> Known:
    """Return the atom applied to the arguments: composition rule and rules of signs."""
    curvature, ways, sign = ATOMS[atom]
    bends = []
    for bend, other in (("convex", "concave"), ("concave", "convex")):
        wanted = {1: bend, -1: other}
        ok = all(each.curvature in ("affine", wanted.get(ways[1 - each.sign])) for each in arguments)
        if curvature in (bend, "affine") and ok:
            bends.append(bend)
    made = "affine" if len(bends) == 2 else bends[0] if bends else "neither"
    text = f"{atom}({', '.join(each.text for each in arguments)})"
    return Known(text, made, _sign(atom, [each.sign for each in arguments]) if sign is None else sign)


def _sign(atom: str, signs: list[int]) -> int:
    if atom == "minus":
        return -signs[0]
    if (atom == "max" and 1 in signs) or (atom == "min" and -1 in signs):
        return 1 if atom == "max" else -1
    return signs[0] if len(set(signs)) == 1 else 0


def _side(text: str) -> Known:
    made = X
    for atom in reversed(text.replace(")", "").split("(")[:-1]):
        made = applied(atom, made)
    return made


def _next(chance: random.Random, inner: Known, level: int, wanted: tuple[str, ...]) -> Known | None:
    """Return the function with one more atom around it, chosen at random among those with the wanted curvature, or
    None.

    The second argument is no deeper than the function: ``level`` atoms. Functions that are zero everywhere are left
    out, such as the positive part of a nonpositive function.
    """
    beside = [side for side in SIDES if side.count("(") <= level]
    found = []
    for atom in ATOMS:
        if (atom, inner.sign) in (("pos", -1), ("negpart", 1)):
            continue
        sides = [_side(chance.choice(beside))] if atom in BINARY else []
        made = applied(atom, inner, *sides)
        if made.curvature in wanted:
            found.append(made)
    return chance.choice(found) if found else None


def function(seed: int, depth: int, label: str) -> Known:
    """Return a function of exactly this depth and label, equal for equal seeds. ``depth``: nested atoms, at least 2."""
    chance = random.Random(f"{seed}/{depth}/{label}")
    known = ("convex", "concave")
    breaks_at = chance.randrange(1, depth) if label == "neither" else depth
    while True:
        made = X
        for level in range(depth):
            last = level == depth - 1
            if label == "neither":
                wanted = ("neither",) if level >= breaks_at else known if level else ("convex", "concave", "affine")
            else:
                wanted = (label,) if last else known
            step = _next(chance, made, level, wanted)
            if step is None:
                break
            made = step
        else:
            return made


def functions(seed: int, depth: int, count: int) -> list[Known]:
    """Return ``count`` functions of one depth, their labels as evenly distributed as possible."""
    return [function(seed * 100_000 + place, depth, LABELS[place % len(LABELS)]) for place in range(count)]
