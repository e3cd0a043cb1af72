"""Sizes: a bound that is one, an estimate that keeps its promise, a verdict that never sends on a guess."""

import json
import re
import unicodedata
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.estimates.request_content import REACHING
from policies.estimates.tokens import (
    _INSIDE,
    _MORE_THAN_TEXT,
    FRAMING_TOKENS,
    IMAGE_TOKENS,
    TOOL_TOKENS,
    TOOLS_TOKENS,
    UNBOUNDED,
    TokenEstimate,
    bodies_tokens_bound,
    body_size,
    body_tokens_bound,
    text_within_tokens_bound,
    tokens_besides,
    tokens_bound,
    verdict,
)

LIGATURE = "\ufdfa"  # three bytes; 18 characters in the form NFKC


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("hello", 5),
        (b"hello", 5),
        ("wörld", 6),
        ("wörld".encode(), 6),
        ("中文", 6),
        (LIGATURE, 33),
        (LIGATURE.encode(), 33),
        ("\u212b", 3),  # the Ångström sign shrinks in NFKC: the longer form counts
        ("\ud800", 3),  # a lone surrogate is no reason to fail
        (b"\xff\xfe", 6),  # two bytes that are no UTF-8, each replaced by three
    ],
)
def test_bound(text: str | bytes, tokens: int) -> None:
    assert tokens_bound(text) == tokens + FRAMING_TOKENS
    assert tokens_bound(text, framing=0) == tokens


@given(st.text())
def test_the_bound_covers_a_token_per_byte_as_it_is_and_normalised(text: str) -> None:
    for form in (text, unicodedata.normalize("NFKC", text), unicodedata.normalize("NFC", text)):
        assert len(form.encode()) <= tokens_bound(text, framing=0)
    assert tokens_bound(text) == tokens_bound(text.encode())


@given(st.text())
def test_a_body_is_bounded_by_its_text_however_it_is_escaped(text: str) -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": text}]}
    for body in (json.dumps(request).encode(), json.dumps(request, ensure_ascii=False).encode()):
        assert body_tokens_bound(body) >= tokens_bound(text)


def test_escapes_do_not_make_a_body_look_larger() -> None:
    request = {"content": "中文" * 100}
    escaped, plain = json.dumps(request).encode(), json.dumps(request, ensure_ascii=False).encode()
    assert len(escaped) > len(plain) + 500
    assert body_tokens_bound(escaped) <= body_tokens_bound(plain)


def test_a_body_that_is_no_json_still_has_a_bound() -> None:
    assert body_tokens_bound(b'{"\\u00') == 6 + FRAMING_TOKENS


def body(**keys: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], **keys}).encode()


def block(kind: str) -> bytes:
    return body(messages=[{"role": "user", "content": [{"type": kind}, {"type": kind}]}])


@pytest.mark.parametrize(
    ("request_body", "more"),
    [
        (body(), 0),
        (body(tools=[]), TOOLS_TOKENS),
        (body(output_config={}), TOOLS_TOKENS),
        (body(tools=[{"type": "bash_20250124", "name": "bash"}]), TOOLS_TOKENS + TOOL_TOKENS),
        (block("image"), 2 * IMAGE_TOKENS),
        (block("text"), 0),
        (body(system='the words "type": "image" and "tools": in a text'), 0),
    ],
)
def test_what_is_not_text_adds_its_own(request_body: bytes, more: int) -> None:
    assert body_tokens_bound(request_body) == tokens_bound(request_body) + more


STRANGE = ["image_url2", "input_audio", "video", "video_url", "cloud_document", "file_data", "tool_reference", "x-y", "im\\u0061ges"]
"""Types of blocks that are not known to be bounded by their bytes."""


def known(*blocks: dict[str, object]) -> bytes:
    return body(messages=[{"role": "user", "content": list(blocks)}])


@pytest.mark.parametrize(
    "request_body",
    [
        known({"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}),
        known({"text": "a"}),
        known({"type": "tool_use", "id": "x", "name": "look", "input": {"type": "video", "content": [{"a": 1}]}}),
        known({"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": "a"}]}),
        known({"type": "thinking", "thinking": "a", "signature": "b"}, {"type": "refusal", "refusal": "c"}),
        known({"type": "search_result", "source": "a", "title": "b", "content": [{"type": "text", "text": "c"}]}),
        body(tools=[{"name": "f", "input_schema": {"type": "object", "properties": {"container": {"type": "geo"}}}}]),
        body(tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]),
        body(output_config={"format": {"type": "json_schema", "schema": {"properties": {"documents": {}}}}}),
        body(response_format={"type": "json_object"}, tool_choice={"type": "required"}),
        body(system="a video and a \"type\": \"video\" in a text"),
        body(metadata={"user_id": "u", "documents": "x"}),
    ],
)
def test_what_is_known_is_bounded_by_its_bytes(request_body: bytes) -> None:
    assert body_tokens_bound(request_body) < 3_000


def picture(size: int) -> dict[str, object]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR" * (size // 5)}}


@pytest.mark.parametrize(
    ("wrapped", "pictures"),
    [
        (lambda image: [image], 1),
        (lambda image: [image, {"type": "text", "text": "what is it?"}, image], 2),
        (lambda image: [{"type": "tool_result", "tool_use_id": "x", "content": [image]}], 1),
    ],
)
def test_an_image_costs_by_its_size_and_not_by_its_bytes(wrapped: Any, pictures: int) -> None:
    sizes = [
        body_tokens_bound(body(messages=[{"role": "user", "content": wrapped(picture(size))}]))
        for size in (50, 5_000_000)
    ]
    assert sizes[0] == sizes[1]
    assert pictures * IMAGE_TOKENS < sizes[1] < pictures * IMAGE_TOKENS + 500


def test_what_only_looks_like_an_image_is_text() -> None:
    given = {"type": "tool_use", "id": "x", "name": "draw", "input": picture(9_000)}
    for content in ([given], [{"type": "text", "text": json.dumps(picture(9_000))}]):
        assert body_tokens_bound(body(messages=[{"role": "user", "content": content}])) > 9_000
    assert body_tokens_bound(body(tools=[{"name": "draw", "input_schema": picture(9_000)}])) > 9_000


@pytest.mark.parametrize(
    "request_body",
    [
        block("document"),
        block("container_upload"),
        body(messages=[{"content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]),
        body(messages=[{"content": [{"type": "image", "source": {"type": "file", "file_id": "x"}}]}]),
        body(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
        body(mcp_servers=[]),
        *(block(kind) for kind in STRANGE),
        body(messages=[{"role": "user", "content": [{"inline_data": {"mime_type": "video/mp4"}}]}]),
        body(messages=[{"role": "user", "content": {"parts": []}}]),
        body(messages=[{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "video"}]}]}]),
        body(messages=[{"role": "assistant", "audio": {"id": "audio_1"}}]),
        body(system=[{"type": "cloud_document"}]),
        body(tools=[{"type": "browser_toolset_20260801", "name": "browser"}]),
        body(tools=[{"google_search": {}}]),
        body(container={"skills": []}),
        *(body(**{name: ["x"]}) for name in REACHING),
    ],
)
def test_what_no_bytes_bound_is_unbounded(request_body: bytes) -> None:
    assert body_tokens_bound(request_body) == UNBOUNDED
    assert body_tokens_bound(request_body.replace(b": ", b":")) == UNBOUNDED


# -- the estimate --------------------------------------------------------------------------------


def seen(*samples: tuple[int, int]) -> TokenEstimate:
    estimate = TokenEstimate()
    for prompt_bytes, tokens in samples:
        estimate = estimate.update(prompt_bytes, tokens)
    return estimate


samples = st.lists(st.tuples(st.integers(512, 100_000), st.integers(1, 100_000)), min_size=1, max_size=150)


@given(samples)
def test_of_100_calls_seen_99_had_no_more_than_estimated(pairs: list[tuple[int, int]]) -> None:
    estimate = seen(*pairs)
    over = [1 for size, tokens in pairs if min(tokens, size) > estimate.tokens(size)]
    assert len(over) * 100 <= len(pairs)


@given(samples)
def test_no_call_seen_had_fewer_than_the_least(pairs: list[tuple[int, int]]) -> None:
    estimate = seen(*pairs)
    assert all(estimate.tokens_least(size) <= tokens for size, tokens in pairs if tokens * 32 >= size)


@given(samples, st.randoms(use_true_random=False))
def test_the_order_of_reports_does_not_matter(pairs: list[tuple[int, int]], random: object) -> None:
    shuffled = pairs.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert seen(*pairs) == seen(*shuffled)


@given(samples, st.integers(0, 10**7), st.integers(0, 40))
def test_an_estimate_lies_between_the_least_and_the_bound(
    pairs: list[tuple[int, int]], size: int, tightenings: int
) -> None:
    estimate = seen(*pairs)
    for _ in range(tightenings):
        estimate = estimate.tightened()
    assert estimate.tokens_least(size) <= estimate.tokens(size) <= size + FRAMING_TOKENS


@given(samples, st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_bytes_are_never_fewer_tokens(pairs: list[tuple[int, int]], size: int, more: int) -> None:
    estimate = seen(*pairs)
    assert estimate.tokens(size) <= estimate.tokens(size + more)
    assert estimate.tokens_least(size) <= estimate.tokens_least(size + more)


def test_before_anything_was_seen_the_prior_is_cautious() -> None:
    assert TokenEstimate().tokens(1_000) == 500 + FRAMING_TOKENS
    assert TokenEstimate().tokens(1_001) == 501 + FRAMING_TOKENS
    assert TokenEstimate().tokens_least(1_000) == 125


def test_a_few_reports_do_not_lift_the_prior_and_many_do() -> None:
    assert seen(*[(4_000, 1_000)] * 19).tokens(4_000) == 2_000 + FRAMING_TOKENS
    assert seen(*[(4_000, 1_000)] * 20).tokens(4_000) == 1_000 + FRAMING_TOKENS


def test_one_dense_text_is_believed_at_once() -> None:
    assert seen((4_000, 4_000)).tokens(4_000) == 4_000 + FRAMING_TOKENS


def test_one_lying_report_in_a_hundred_moves_nothing() -> None:
    honest = [(4_000, 1_000)] * 99
    assert seen(*honest, (4_000, 10**9)).tokens(4_000) == seen(*honest).tokens(4_000)
    assert seen(*honest[:98], (4_000, 10**9)).tokens(4_000) == 4_000 + FRAMING_TOKENS


@pytest.mark.parametrize(("prompt_bytes", "tokens"), [(511, 400), (0, 0), (4_000, 0), (4_000, -3)])
def test_small_prompts_and_impossible_counts_are_passed_over(prompt_bytes: int, tokens: int) -> None:
    assert TokenEstimate().update(prompt_bytes, tokens) == TokenEstimate()


def test_a_refusal_as_too_large_tightens() -> None:
    estimate = seen(*[(4_000, 1_000)] * 20)
    readings = [estimate.tokens(80_000)]
    for _ in range(50):
        estimate = estimate.tightened()
        readings.append(estimate.tokens(80_000))
    assert readings[1] == 20_000 * 9 // 8 + FRAMING_TOKENS
    assert all(earlier <= later for earlier, later in pairwise(readings))
    assert readings[-1] == 80_000 + FRAMING_TOKENS  # the bound
    assert estimate == estimate.tightened()


def test_an_estimate_has_a_fixed_size_and_survives_the_snapshot() -> None:
    estimate = seen(*((size, size // 3) for size in range(512, 3_000)))
    assert len(msgspec.msgpack.encode(estimate)) < 200
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(estimate), type=TokenEstimate) == estimate


@pytest.mark.parametrize(
    ("bound", "least", "tokens_max", "expected"),
    [
        (100, 10, 100, "send"),
        (101, 10, 100, "ask_counter"),
        (101, 100, 100, "ask_counter"),
        (UNBOUNDED, 1, 100, "ask_counter"),
        (800, 101, 100, "too_large"),
        (1, 0, 0, "ask_counter"),
    ],
)
def test_verdict(bound: int, least: int, tokens_max: int, expected: str) -> None:
    assert verdict(bound, least, tokens_max) == expected


TEXTS_WITHIN = (
    "hello",
    "",
    "grüß dich",
    'a "type": "image" in it',
    "a \\ and \\u00e9",
    '"tools": ["mcp_servers"]',
    "x" * 900,
    "\U0001f600",
)
REQUESTS: tuple[dict[str, Any], ...] = (
    {}, {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    {"tools": [{"name": "answer", "input_schema": {"type": "object"}}]}, {"tools": [{"type": "bash_20250124", "name": "bash"}]},
    {"tools": [{"type": "web_search_20250305"}]}, {"mcp_servers": []}, {"system": "grüß"}, {"system": "caf\\u00e9"},
    {"tools": [{"type": "bash_20250124", "name": str(number)} for number in range(9)]},
)  # fmt: skip


@pytest.mark.parametrize("more", REQUESTS)
@pytest.mark.parametrize("text", TEXTS_WITHIN)
def test_the_bound_of_a_text_within_a_request_is_that_of_the_request(text, more):
    def request(content: str) -> bytes:
        return msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": content}], **more})

    whole, within = request(text), msgspec.json.encode(text)[1:-1]
    assert text_within_tokens_bound(whole, within, tokens_besides(request(""))) == body_tokens_bound(whole)


@given(st.text() | st.text("e\u0301\u0338\ufdfa\u1100\u1161=<\"\\\n", max_size=9) | st.binary(max_size=9))
def test_a_text_is_normalized_apart_from_the_request_around_it(text):
    before, after = msgspec.json.encode({"messages": "TEXT", **REQUESTS[1]}).split(b"TEXT")
    within = text.replace(b'"', b"").replace(b"\\", b"") if isinstance(text, bytes) else msgspec.json.encode(text)[1:-1]
    whole = before + within + after
    assert text_within_tokens_bound(whole, within, tokens_besides(before + after)) == body_tokens_bound(whole)


@pytest.mark.parametrize(
    "bodies",
    [
        (),
        (b"{}",),
        (b"{}", b"{..}"),
        (b'{"type": "document"}', b"{}"),
        (b"{}", "{grüß}".encode()),
        (b"\\u00e9", b"{}"),
        (b"{}", "\ufdfa".encode() * 20),
        (b'["' + b"\\ufdfa" * 20 + b'"]', b"{}"),
        (b"a\\n", b'\\"'),
    ],
)
def test_the_bound_of_several_requests_is_the_largest(bodies):
    assert bodies_tokens_bound(bodies) == max(map(body_tokens_bound, bodies), default=0)


def test_a_picture_of_chat_completions_is_bounded_like_any_other():
    def bound(url: str) -> int:
        part = {"type": "image_url", "image_url": {"url": url}}
        return body_tokens_bound(json.dumps({"messages": [{"role": "user", "content": [part]}]}).encode())

    linked, packed = bound("https://x/y.png"), bound("data:image/png;base64," + "A" * 100_000)
    assert IMAGE_TOKENS < packed < linked < IMAGE_TOKENS + 500


_FRAGMENTS = [
    *[match for key in _INSIDE for match in (key.replace(rb"\s*", b" ").replace(rb"[\[{]", b"["), key[: len(key) // 2])],
    b'type"', b'tools"', b"output_", b"content", b'":"', b'": {', b":[", b'"', b"model", b"messages", b"x", b" ",
]  # fmt: skip


@given(st.lists(st.sampled_from(_FRAGMENTS), max_size=12).map(b"".join))
def test_the_search_for_more_than_text_finds_what_its_alternatives_find(request: bytes) -> None:
    alternatives = re.compile(rb'"(?:type"|tools"|output_|%b)' % b"|".join(_INSIDE))
    found, expected = _MORE_THAN_TEXT.search(request), alternatives.search(request)
    assert (found and found.span()) == (expected and expected.span())


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["text", "image", "base64", "data:", "custom", "x"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "text", "content", "source", "image_url", "url", "data", "name", "role", "id"]), inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
"""JSON of any shape under the names that a request may have."""


@given(st.dictionaries(st.sampled_from(["messages", "system", "tools", "input", "mcp_servers"]), _ANY, max_size=3))
def test_a_request_of_any_shape_has_a_bound(request: dict[str, object]) -> None:
    """A server refuses it in its own words; the estimate must not fail in its place."""
    body = json.dumps(request).encode()
    assert 0 < body_tokens_bound(body) <= UNBOUNDED
    assert body_size(body) > 0


def test_a_block_whose_type_is_no_text_may_stand_for_anything() -> None:
    request = {"messages": [{"role": "user", "content": [{"type": ["text"], "text": "x"}]}]}
    assert body_tokens_bound(json.dumps(request).encode()) == UNBOUNDED
