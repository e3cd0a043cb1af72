"""Prompts: rendered as given, bounded in tokens and in parts, and named by what rendered them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex.values.prompt import DoesNotFit, Part, Prompt, Role, Rule, request_body

PARTS = st.builds(
    Part,
    st.sampled_from(Role),
    st.text(max_size=30),
    st.integers(-3, 3),
    st.sampled_from(Rule),
    st.sampled_from(["", "title"]),
)
PROMPTS = st.builds(Prompt, st.just("made"), st.lists(PARTS, max_size=8).map(tuple), lead=st.sampled_from(["", "Answer:"]))


def letters(text: str) -> int:
    return len(text.encode())


def of(*parts: Part) -> Prompt:
    return Prompt("made", parts, separator="|")


def part(text: str, priority: int = 0, rule: Rule = Rule.DROP, role: Role = Role.DOCUMENT) -> Part:
    return Part(role, text, priority, rule)


def test_system_and_user_text_keep_their_order():
    prompt = of(part("a", role=Role.SYSTEM), part("b"), part("c", role=Role.SYSTEM), Part(Role.GOAL, "d", title="T"))
    assert (prompt.system(), prompt.user()) == ("a|c", "b|T\nd")


def test_a_lead_stands_at_the_very_end():
    assert Prompt("x", (part("a"),), separator="|", lead="Answer:").user() == "a|Answer:"
    assert Prompt("x", (), lead="Answer:").user() == "Answer:"


CASES = {
    "what fits stays": (of(part("aaa"), part("bbb")), 99, 9, "aaa|bbb", ()),
    "the lowest priority goes first": (of(part("aaa", 1), part("bbb", 0), part("ccc", 2)), 9, 9, "aaa|ccc", ("bbb",)),
    "the last of equals goes first": (of(part("aaa"), part("bbb")), 5, 9, "aaa", ("bbb",)),
    "one that may be cut is cut": (of(part("aaa", 1), part("bbbbb", 0, Rule.CUT)), 7, 9, "aaa|bb", ("document: cut",)),
    "one cut to nothing is dropped": (of(part("aaa", 1), part("bbb", 0, Rule.CUT)), 4, 9, "aaa", ("bbb",)),
    "too many parts go, though they fit": (of(part("a", 2), part("b", 1), part("c", 3)), 99, 2, "a|c", ("b",)),
    "what must stay stays": (of(part("aaa", 0, Rule.KEEP), part("bbb", 9)), 5, 9, "aaa", ("bbb",)),
}


@pytest.mark.parametrize("name", CASES)
def test_fit(name):
    prompt, tokens_max, parts_max, user, left_out = CASES[name]
    fitted = prompt.fit(tokens_max, letters, parts_max)
    assert (fitted.user(), fitted.left_out) == (user, left_out)
    assert fitted.constructor == "made"


@pytest.mark.parametrize(("tokens_max", "parts_max"), [(5, 9), (99, 1)])
def test_what_must_stay_and_is_too_much_does_not_fit(tokens_max, parts_max):
    prompt = of(part("aaa", 0, Rule.KEEP), part("bbb", 0, Rule.KEEP), part("ccc"))
    with pytest.raises(DoesNotFit, match=r"made: \d+ tokens in \d parts; at most"):
        prompt.fit(tokens_max, letters, parts_max)


@given(PROMPTS, st.integers(0, 60), st.integers(0, 8))
def test_fit_is_bounded_twice_and_keeps_what_must_stay(prompt, tokens_max, parts_max):
    must = [one for one in prompt.parts if one.rule == Rule.KEEP]
    try:
        fitted = prompt.fit(tokens_max, letters, parts_max)
    except DoesNotFit:
        alone = msgspec.structs.replace(prompt, parts=tuple(must))
        assert letters(alone.text()) > tokens_max or len(must) > parts_max
        return
    assert letters(fitted.text()) <= tokens_max
    assert len(fitted.parts) <= parts_max
    assert [one for one in fitted.parts if one.rule == Rule.KEEP] == must
    kept = iter(prompt.parts)
    for one in fitted.parts:  # a subsequence, each part whole or a head of itself
        assert any(was == one or (was.rule == Rule.CUT and was.text.startswith(one.text)) for was in kept)
    assert fitted.fit(tokens_max, letters, parts_max) == fitted
    if letters(prompt.text()) <= tokens_max and len(prompt.parts) <= parts_max:
        assert fitted == prompt


@given(PROMPTS, st.integers(20, 60))
def test_nothing_is_dropped_for_what_is_less_important(prompt, tokens_max):
    """Everything that was dropped is at most as important as everything that could have been dropped and was kept."""
    try:
        fitted = prompt.fit(tokens_max, letters, 8)
    except DoesNotFit:
        return
    kept = [one.priority for one in fitted.parts if one.rule != Rule.KEEP and one in prompt.parts]
    gone = [one.priority for one in prompt.parts if one not in fitted.parts and one.rule == Rule.DROP]
    assert not kept or not gone or max(gone) <= min(kept)


def test_the_request_is_the_same_bytes_whatever_the_order_of_its_parameters():
    prompt = of(part("s", role=Role.SYSTEM), part("u"))
    one = request_body(prompt, "m", 7, {"temperature": 0, "metadata": {"b": 1, "a": 2}, "stream": True})
    two = request_body(prompt, "m", 7, {"metadata": {"a": 2, "b": 1}, "temperature": 0})
    assert one == two
    assert msgspec.json.decode(one) == {
        "model": "m", "max_tokens": 7, "system": "s", "messages": [{"role": "user", "content": "u"}], "temperature": 0,
        "metadata": {"a": 2, "b": 1},
    }  # fmt: skip


def test_a_request_without_system_text_has_no_system():
    assert b"system" not in request_body(of(part("u")), "m", 7)
