"""The bound where requests are sent: whatever it remembers of requests before, it says what each comes to by itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.branch import prompt_limit as bound
from actors.branch.prompt_limit import PromptLimit, within_string
from cortex.state.commands import Call
from policies.estimates.tokens import UNBOUNDED, body_tokens_bound

TEXTS = (
    "hello",
    "\ufdfa" * 20,
    "\\ufdfa" * 20,
    "two\nlines",
    "",
    "grüß dich",
    'a "type": "image" in it',
    "a \\ and \\u00e9 \x00",
    '", "tools": ["',
    "x" * 900,
    "end\\",
)
MORE: tuple[dict[str, Any], ...] = (
    {}, {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    {"tools": [{"name": "answer", "input_schema": {"type": "object"}}]}, {"tools": [{"type": "bash_20250124", "name": "bash"}]},
    {"tools": [{"type": "web_search_20250305"}]}, {"mcp_servers": []}, {"system": "grüß", "tools": []}, {"system": "caf\\u00e9"},
    {"tools": [{"type": "bash_20250124", "name": str(number)} for number in range(9)]},
)  # fmt: skip


def request(text: str, more: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"messages": [{"role": "user", "content": text}], "model": "m", **more})


@pytest.mark.parametrize("more", MORE)
def test_requests_with_one_frame_are_bounded_as_each_by_itself(more: dict[str, Any]) -> None:
    known = PromptLimit()
    for text in (*TEXTS, *reversed(TEXTS)):
        for body in (request(text, more), request(text, MORE[1]), request(text, more)):
            assert known.of(body) == body_tokens_bound(body)


def test_a_frame_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known, looked = PromptLimit(), []
    monkeypatch.setattr(bound, "body_tokens_bound", lambda body: looked.append(body) or body_tokens_bound(body))
    for number in range(5):
        known.of(request(f'row {number}: \\ and "quoted"', MORE[1]))
    assert len(looked) == 1


def test_what_is_put_where_the_text_stood_is_no_text_where_it_ends_the_string() -> None:
    known = PromptLimit()
    body = request("TEXT", MORE[1])
    known.of(body)
    for within in (b'"},{"type":"image"},{"content":"', rb"\\\"", rb'\\","type":"document","a":"', b"", b"a"):
        other = body.replace(b"TEXT", within)
        assert known.of(other) == body_tokens_bound(other), within
    head, tail = body.split(b"TEXT")
    for other in (head + tail[1:], head[:-1] + tail, head[:-1] + tail[1:]):  # they overlap, or something is missing
        assert known.of(other) == body_tokens_bound(other)


@pytest.mark.parametrize(
    ("text", "within"),
    [(b"", True), (b"a", True), (b'"', False), (rb"\"", True), (rb"\\"[:1], False), (rb"\\", True), (rb'\\"', False), (rb"\\\"", True),
     (b'\\"\\', False), (rb"\n\t\\", True)],
)  # fmt: skip
def test_what_stays_within_a_string(text: bytes, within: bool) -> None:
    assert within_string(text) is within


def calls(*asked: tuple[bytes, int]) -> list[Call]:
    return [Call(goal, "0", 1, b"", body, 1, tokens_max, 60.0) for goal, (body, tokens_max) in enumerate(asked)]


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("text", TEXTS)
def test_a_message_is_within_its_bounds_only_where_each_call_is(text: str, more: dict[str, Any]) -> None:
    body, small = request(text, more), request("", {})
    known = PromptLimit()
    known.of(request("", more))
    for tokens_max in (0, len(body), body_tokens_bound(body) - 1, body_tokens_bound(body), UNBOUNDED - 1):
        for message in (
            calls((small, 1_000), (body, tokens_max), (small, 1_000)),
            calls((request("", more), UNBOUNDED), (body, tokens_max), (request("a", more), UNBOUNDED)),
        ):
            if known.all_within(message) or PromptLimit().all_within(message):
                assert body_tokens_bound(body) <= tokens_max


@given(st.lists(st.text('a"\\/\n\u00e9u\ufdfa\u0301', max_size=6), min_size=1, max_size=4), st.sampled_from(MORE), st.integers(-2, 2))
def test_texts_in_one_frame_are_within_their_bounds_only_where_each_is(texts: list[str], more: Any, slack: int) -> None:
    known, bodies = PromptLimit(), [request(text, more) for text in texts]
    known.of(request("TEXT", more))
    bound = max(map(body_tokens_bound, bodies))
    within = known.all_within(calls(*((body, bound + slack) for body in bodies)))
    assert not within or slack >= 0


@pytest.mark.parametrize("text", [rb"\ufdfa" * 20, b"end\\", b'"', rb'\\"'])
def test_a_text_that_its_bytes_do_not_bound_is_looked_at_by_itself(text: bytes) -> None:
    known, body = PromptLimit(), request("TEXT", MORE[1])
    known.of(body)
    odd = body.replace(b"TEXT", text)
    for message in ((odd, body), (body, odd)):
        assert not known.all_within(calls(*((each, UNBOUNDED - 1) for each in message)))


def test_rows_of_a_table_are_proved_together() -> None:
    known, bodies = PromptLimit(), [request(f'row {number}:\n"x"', MORE[1]) for number in range(5)]
    assert not known.all_within(calls(*((body, UNBOUNDED - 1) for body in bodies)))  # no frame is known yet
    known.of(bodies[0])
    bound = body_tokens_bound(bodies[0])
    assert known.all_within(calls(*((body, bound) for body in bodies)))
    assert not known.all_within(calls(*((body, bound - 1) for body in bodies)))
    assert not known.all_within(calls((bodies[1], bound), (request("x", {}), bound)))


def test_plain_calls_are_proved_together_to_the_token() -> None:
    short, long = request("a", {}), request("a" * 90, {})
    bound = body_tokens_bound(long)
    assert PromptLimit().all_within(calls((short, bound), (long, bound)))
    assert not PromptLimit().all_within(calls((short, bound), (long, bound - 1)))
    assert not PromptLimit().all_within(calls((short, 1), (long, bound)))
