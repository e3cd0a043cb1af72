"""Definitions that depend on definitions: how hard they are for the bounded reasoner."""

from __future__ import annotations

import pytest

from actors.simulator.api.reasoner import chained, error_share


@pytest.mark.parametrize(
    ("text", "long"),
    [
        ("", 0),
        ("t1 = f(x)", 1),
        ("t1 = f(x)\nt2 = g(t1)\nt3 = h(t2, t1)", 3),
        ("t1 = f(x)\nt2 = g(x)\nt3 = h(x)", 1),
        ("t2 = g(t1)\nt1 = f(x)", 1),
        ("they say t1 = f(x)\nand t2 = g(t1)", 0),
    ],
)
def test_a_chain_of_definitions_is_as_deep_as_brackets_are(text: str, long: int) -> None:
    assert chained(text) == long
    deep = "".join(f"t{place + 1} = f(t{place})\n" for place in range(50))
    assert error_share(deep, 100) == error_share("f(" * 50 + "x" + ")" * 50, 100)
