"""The reasoner writes programs from what a request says of them, and counts lines; for whoever asks for such."""

from __future__ import annotations

import ast

import pytest

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.skills.code_snippets import program
from actors.simulator.reasoning.skills.line_counts import tally
from cortex.programs.parts.rlm_prompts import ShownTurn, code_of, writing

COUNT = "How many of the reviews of K-3 mention a late delivery?"
LINES = (
    "1 of K-3: a late delivery\n2 of K-4: a late delivery\n3 of K-3: the delivery came late\n4 of K-3: it came late\n"
)


def read(question: str, context: object = LINES, told: tuple[ShownTurn, ...] = (), **more: object) -> ParsedPrompt:
    given = {"returns": "number", "preview": 300, "told": told, "turn": 1, "turns": 8, "recurses": False} | more
    prompt = writing(question, context, **given)  # type: ignore[arg-type]
    return ParsedPrompt(prompt.user(), prompt.system())


def written(reading: ParsedPrompt) -> str:
    thought = program(reading)
    assert thought is not None
    code = code_of(thought.right)
    ast.parse(code)
    for wrong in thought.wrong:
        ast.parse(code_of(wrong))
        assert code_of(wrong) != code
    return code


def test_it_counts_in_code_and_judges_by_calls():
    code = written(read(COUNT))
    assert "llm_map(" in code and "'K-3' in line" in code and "submit(sum(numbers))" in code
    assert "submit(str(sum(numbers)))" in written(read(COUNT, returns="text"))


def test_it_asks_of_every_piece_where_nothing_is_to_be_counted():
    code = written(read("What do they say of the colour?", returns="text"))
    assert "llm_map(" in code and "submit(llm(" in code


def test_it_looks_first_where_it_has_seen_nothing_and_has_another_turn():
    assert written(read(COUNT, preview=0)).startswith("print(type(context)")
    assert "submit(" in written(read(COUNT, preview=0, turn=1, turns=1))
    seen = (ShownTurn("print(1)", "<class 'str'> 90"),)
    assert "submit(" in written(read(COUNT, preview=0, told=seen, turn=2))


@pytest.mark.parametrize("context", [{"a": LINES}, LINES.splitlines()])
def test_it_goes_by_the_kind_of_the_context(context):
    assert '"\\n".join(' in written(read(COUNT, context))


def test_it_follows_other_prompts_that_want_programs():
    system = (
        "Write code in ```repl``` blocks. There are `context`, `llm_query(prompt)`, `llm_query_batched(prompts)` and"
        ' `answer`: set answer["content"] and answer["ready"] = True.'
    )
    first = ParsedPrompt(f"Answer the following: {COUNT}\n\nYour context is a str of 99 total characters.", system)
    thought = program(first)
    assert thought is not None and thought.right.startswith("```repl\nprint(type(context)")
    then = program(ParsedPrompt(f"{first.text}\n\nREPL output:\n<class 'str'> 99", system))
    assert then is not None and 'answer["content"] = str(sum(numbers))\nanswer["ready"] = True' in then.right
    assert "llm_query_batched(" in then.right


@pytest.mark.parametrize("text", ["How many are there?", "Write ```python code```.", "Question: x\nCall llm_map(x)."])
def test_what_asks_for_no_program_gets_none(text):
    assert program(ParsedPrompt(text)) is None


def test_it_counts_lines_by_names_and_words():
    thought = tally(ParsedPrompt(f"{COUNT} Answer with a number alone.\n\n<lines>\n{LINES}</lines>"))
    assert thought is not None and (thought.right, thought.wrong) == ("2", ("3", "1"))
    assert tally(ParsedPrompt(f"How many of the lines are about trains?\n\n<lines>\n{LINES}</lines>")).right == "0"
    assert tally(ParsedPrompt("How many of the reviews mention a late delivery?")) is None
    assert tally(ParsedPrompt("How many words?\n\n<lines>\na\n</lines>")) is None
