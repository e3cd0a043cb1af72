"""The reasoner's edits: made of what a check names in the text, a few at once, and wrong as a careless reader is."""

from __future__ import annotations

import pytest

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.skills.file_edits import AT_ONCE, edit
from cortex.programs.parts.edits import FORM, edits_of

ASKED = f"{FORM}\n\nTask\nFill it.{{limit}}\n\nCheck: c\n{{found}}\n\nGive the edits of this round."


def reading(*found: str, limit: str = "") -> ParsedPrompt:
    return ParsedPrompt(ASKED.format(found="\n".join(found), limit=limit))


def test_what_is_missing_is_added_with_its_value_and_what_is_wrong_replaced():
    thought = edit(reading("a.txt: missing: 6 * 7", "b/c.txt: missing: as it stands", "a.txt: wrong: 1 + 1 = 3"))
    assert thought is not None
    assert edits_of(thought.right) == [
        {"do": "replace", "path": "a.txt", "old": "1 + 1 = 3\n", "new": "1 + 1 = 2\n"},
        {"do": "append", "path": "a.txt", "text": "6 * 7 = 42\n"},
        {"do": "append", "path": "b/c.txt", "text": "as it stands\n"},
    ]


@pytest.mark.parametrize(("limit", "lines"), [("", AT_ONCE), (" At most 3 a round: at most 3.", 3)])
def test_of_many_findings_a_few_are_dealt_with(limit, lines):
    thought = edit(reading(*[f"a.txt: missing: {number} + 1" for number in range(20)], limit=limit))
    assert thought is not None
    (one,) = edits_of(thought.right)
    assert one["text"].splitlines() == [f"{number} + 1 = {number + 1}" for number in range(lines)]
    wrong = edits_of(thought.wrong[0])[0]["text"].splitlines()
    assert wrong[:-1] == one["text"].splitlines()[:-1] and wrong[-1] == f"{lines - 1} + 1 = {lines + 1}"


def test_where_nothing_is_named_it_thinks_that_it_is_done_and_without_the_form_it_is_no_matter_of_edits():
    thought = edit(reading("all is well"))
    assert thought is not None and thought.right == "<done/>"
    assert edit(ParsedPrompt("a.txt: missing: 6 * 7\n\nWhat is missing?")) is None
