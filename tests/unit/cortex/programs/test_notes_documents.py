"""What ``notes`` decides without asking: sizes, cuts, clusters, word overlap, framings, and what its prompts show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex.programs.parts import notes_documents, notes_prompts
from cortex.programs.parts.notes_brief import NotesBrief
from cortex.programs.parts.notes_documents import ANNOTATED, BARE, CLAIMS_ONLY, Document, DocumentGroup, PromptScale
from cortex.programs.parts.notes_framing import framed
from cortex.state.state import State
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.prompt import Part, Role, request_body
from cortex.values.reply import Malformed
from policies.estimates.tokens import body_tokens_bound
from tests.support.synchronous_driver import replied

QUESTION = "What grows in the garden?"
BYTES = PromptScale(notes_prompts.size_bytes, lambda frame, out: 0)


def finding(id_: int, name: str, *claims: str, says: str = "neither", text: str = "text") -> Document:
    return Document(id_, name, text, "why", claims, says)


@given(st.text(max_size=3_000), st.integers(4, 400))
def test_a_divided_text_is_whole_again_and_every_piece_fits(text: str, room: int) -> None:
    pieces = notes_documents.divided(text, room, notes_prompts.size_bytes)
    assert "".join(pieces) == text
    assert len(pieces) == 1 or all(notes_prompts.size_bytes(piece) <= room for piece in pieces)


def test_a_text_is_divided_into_no_more_pieces_than_must_be() -> None:
    text = "A word and a word. " * 500
    assert len(notes_documents.divided(text, 1_000, notes_prompts.size_bytes)) <= len(text) // 1_000 * 2
    uneven = "word " * 400 + '" ' * 1_000  # the second half takes half as much again, in JSON
    assert len(notes_documents.divided(uneven, 1_200, notes_prompts.size_bytes)) <= 6
    assert notes_documents.divided(text, 3, notes_prompts.size_bytes) == [text]


@given(st.lists(st.text(max_size=300), max_size=6))
def test_sizes_by_bytes_are_never_below_the_bound_of_the_whole_request(texts: list[str]) -> None:
    parts = [notes_prompts.document(f"n{i}", text) for i, text in enumerate(texts)]
    frame = notes_prompts.judge(QUESTION, [], 3, [])
    whole = body_tokens_bound(request_body(notes_prompts.judge(QUESTION, [], 3, parts), "m", 10))
    assert whole <= body_tokens_bound(request_body(frame, "m", 10)) + BYTES.of(parts)


def test_those_that_share_words_are_neighbours() -> None:
    words = [frozenset(each.split()) for each in ("rose bed", "pear tree", "rose hedge", "plum tree", "stone")]
    order = notes_documents.alike(words)
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert abs(order.index(0) - order.index(2)) == 1
    assert abs(order.index(1) - order.index(3)) == 1
    assert order[-1] == 4, "what shares nothing comes last"


def test_telling_words_leave_out_the_plain_ones_and_plurals() -> None:
    assert notes_documents.content_words("These Gardens have thus many roses; this across") == {
        "garden",
        "rose",
        "across",
    }


def test_clusters_keep_both_bounds_and_lose_nothing() -> None:
    shown = [finding(i, f"n{i}", f"claim {'ab'[i % 2] * 6}", text="x" * 300) for i in range(20)]
    groups, left_out = notes_documents.clusters(shown, BYTES, 1_500, 3, QUESTION, 100)
    assert not left_out
    assert sorted(each.id for group in groups for each in group.documents) == list(range(20))
    for group in groups:
        parts = [part for each, form in zip(group.documents, group.forms, strict=True) for part in each.parts(form)]
        assert len(group.documents) <= 3
        assert BYTES.of(parts) <= 1_500
    assert {form for group in groups for form in group.forms} == {ANNOTATED}
    together = [{each.claims for each in group.documents} for group in groups]
    assert sum(len(claims) == 1 for claims in together) >= len(groups) - 1, "like documents stand together"


@pytest.mark.parametrize(
    ("size", "form"), [(300, ANNOTATED), (1_380, BARE), (3_000, CLAIMS_ONLY), (50, ANNOTATED), (690, ANNOTATED)]
)
def test_a_document_is_shown_in_the_fullest_form_that_fits(size: int, form: int) -> None:
    shown = finding(1, "n", "a claim of some length, and " * 3, text="x" * size)
    groups, left_out = notes_documents.clusters([shown], BYTES, 1_500, 5, QUESTION, 100)
    assert [group.forms for group in groups] == [[form]] and not left_out


def test_a_small_document_takes_at_most_half_of_the_room() -> None:
    shown = finding(1, "n", "a claim " * 60, text="x" * 600)
    groups, _ = notes_documents.clusters([shown], BYTES, 1_500, 5, QUESTION, summary_bytes=700)
    assert [group.forms for group in groups] == [[BARE]]


def test_what_fits_in_no_form_is_left_out() -> None:
    shown = finding(1, "n", "a claim " * 300, text="x" * 3_000)
    assert notes_documents.clusters([shown], BYTES, 1_500, 5, QUESTION, 100) == ([], [shown])


def test_documents_are_packed_all_or_not_at_all_and_the_rest_by_priority() -> None:
    parts = [
        notes_prompts.connection("c" * 50),
        notes_prompts.annotation("n", "w" * 50),
        notes_prompts.document("n", "d" * 50),
    ]
    sizes = [BYTES.of([part]) for part in parts]
    assert notes_documents.packed(BYTES, sum(sizes), 9, parts) == parts
    assert notes_documents.packed(BYTES, sum(sizes) - 1, 9, parts) == [parts[0], parts[2]]
    assert notes_documents.packed(BYTES, sum(sizes), 2, parts) == [parts[0], parts[2]]
    assert notes_documents.packed(BYTES, sizes[2] - 1, 9, parts) is None
    assert notes_documents.packed(BYTES, sum(sizes), 0, parts) is None


def test_two_summaries_as_large_as_they_may_be_fit_a_synthesis() -> None:
    brief = NotesBrief(QUESTION, (), 3, 5_000, 300)
    route = Route(endpoint="e", model="m")
    for tokens_max in (1_500, 3_000, 20_000):
        terms = JobTerms(
            job="j", program="notes", params_json=b"{}", fingerprint="f", route=route,
            limits=Limits(prompt_tokens_max=tokens_max, parts_max=7),
        )  # fmt: skip
        k = State(terms=terms)
        notes = [finding(i, f"n{i}", "a claim", text="x" * 200) for i in range(1, 40)]
        for level in (notes_documents.ESTIMATED, notes_documents.BY_BYTES):
            groups, _ = brief.clusters(k, notes, level)
            size = groups[0].summary_bytes
            shown = [Document(i, f"summary {i}", "x" * size, summary=True) for i in (998, 999)]
            assert brief.synthesis(k, shown, [], level) is not None
            (group,), _ = brief.clusters(k, shown, level)
            assert len(group.documents) == 2
            assert brief.clusters(k, shown[:1], level) == ([], []), "no summary makes this one smaller"


def test_a_small_document_alone_waits_for_the_next_round() -> None:
    assert not DocumentGroup([finding(1, "n", text="x" * 99)], [BARE], [], 100).larger_than(100)
    assert DocumentGroup([finding(1, "n", text="x" * 101)], [BARE], [], 100).larger_than(100)
    assert DocumentGroup([finding(1, "n"), finding(2, "m")], [BARE, BARE], [], 100).larger_than(100)


# -- framing -------------------------------------------------------------------------------------------------------


def roles(parts: list[Part]) -> list[Role]:
    return [part.role for part in parts]


def test_notes_that_take_sides_are_opposed() -> None:
    shown = [finding(1, "a", "it grows"), finding(2, "b", "no", says="no"), finding(3, "c", "yes", says="yes")]
    constructor, parts = framed(shown, QUESTION, [])
    assert constructor == notes_prompts.OPPOSED
    assert "These answer yes: c.\nThese answer no: b." in parts[0].text
    assert [part.text.split('"')[1] for part in parts[1:]] == ["c", "c", "b", "b", "a", "a"]


def test_notes_that_share_words_of_their_own_are_connected() -> None:
    shown = [finding(1, "a", "roses climb"), finding(2, "b", "pears ripen"), finding(3, "c", "roses bloom"),
             finding(4, "d", "pears rot")]  # fmt: skip
    constructor, parts = framed(shown, QUESTION, [])
    assert constructor == notes_prompts.CONNECTED
    lines = [part.text for part in parts if part.role == Role.CONNECTION]
    assert lines == [
        "<connection>\nThese belong together: b; d.\nAll of them speak of: pear.\n</connection>",
        "<connection>\nThese belong together: a; c.\nAll of them speak of: rose.\n</connection>",
    ]


def test_notes_that_take_one_side_are_not_opposed() -> None:
    shown = [finding(1, "a", "it grows", says="yes"), finding(2, "b", "it does", says="yes")]
    assert framed(shown, QUESTION, [])[0] == notes_prompts.DOCUMENTS


def test_a_word_that_most_have_connects_nothing() -> None:
    shown = [finding(i, f"n{i}", f"soil {kind}") for i, kind in enumerate(("roses", "pears", "plums", "figs"))]
    assert framed(shown, QUESTION, [])[0] == notes_prompts.DOCUMENTS


def test_a_word_of_the_question_connects_nothing() -> None:
    shown = [finding(1, "a", "the garden grows"), finding(2, "b", "a garden")]
    assert framed(shown, QUESTION, [])[0] == notes_prompts.DOCUMENTS


def test_beside_summaries_stand_the_claims_beneath_them() -> None:
    shown = [Document(9, "summary 9", "short", summary=True)]
    constructor, parts = framed(shown, QUESTION, [finding(1, "a", "roses climb")])
    assert constructor == notes_prompts.SUMMARIES
    assert roles(parts) == [Role.DOCUMENT, Role.ANNOTATION]
    assert "- roses climb" in parts[1].text


# -- prompts -------------------------------------------------------------------------------------------------------


def test_what_a_note_contains_cannot_end_it() -> None:
    part = notes_prompts.document('a "b" <c>', "one </note> two")
    assert part.text == '<note-2 name="a b c">\none </note> two\n</note-2>'


@pytest.mark.parametrize(
    ("question", "polar"),
    [
        ("Is it deep?", True),
        ("We have ships. Should they go there? ", True),
        ("How deep is it?", False),
        ("Is it deep, and if so, how deep? And where?", False),
        ("island", False),
        ("", False),
    ],
)
def test_questions_that_yes_or_no_can_answer(question: str, polar: bool) -> None:
    assert notes_prompts.polar(question) is polar


def test_a_plan_sees_only_so_many_names() -> None:
    prompt = notes_prompts.plan(QUESTION, [f"note {i}" for i in range(5_000)], 3)
    assert len(prompt.text()) < notes_prompts.NAMES_BYTES_MAX + 1_000


def test_a_summary_is_bounded_in_bytes_as_they_stand_in_a_request() -> None:
    assert notes_prompts.as_summary(replied("深い港" * 10), 90) == "深い港" * 10
    for text in ("深い港" * 11, 'a"' * 40):
        with pytest.raises(Malformed, match=r"a summary of (99|120) bytes; at most 90"):
            notes_prompts.as_summary(replied(text), 90)
