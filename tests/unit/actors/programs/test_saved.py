"""Saved programs on disk: what is written is read again, to the letter; and only what was approved is given to run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.programs.saved import (
    ProgramOrigin,
    RecordedCase,
    SavedProgram,
    SavedProgramError,
    WritingCost,
    cases,
    place_of,
    read,
    write,
)
from cortex.programs.parts.rlm_prompts import code_of
from cortex.state.sandbox import PieceCallResult

KEPT = SavedProgram(
    name="late", version=3, question='How "many"?\n\\n', returns="number", pieces=("x = 1\nsubmit(x)",),
    origin=ProgramOrigin("job", "m", "2026-11-22", "0.1.0"), cost=WritingCost(1, 3, 100, 20, 0.5),
)  # fmt: skip


@pytest.mark.parametrize(
    "code",
    [
        "submit(1)",
        "x = '''\nthree\n'''\nsubmit(x)",
        "x = '\\n'\r\nsubmit('é ☃ \U0001f600')",
        'a = """\n\x7f"""',
        "# \u00a0 '",
    ],
)
def test_a_file_says_what_was_written(tmp_path, code):
    path = tmp_path / "programs" / "late.toml"
    kept = msgspec.structs.replace(KEPT, pieces=(code, "submit(2)"))
    write(path, kept, [RecordedCase(3, "job", "q", {"a": "b"}, [("p", PieceCallResult("x"))], 1)])
    assert read(path) == kept
    assert cases(path) == [RecordedCase(3, "job", "q", {"a": "b"}, [("p", PieceCallResult("x"))], 1)]
    assert sorted(each.name for each in path.parent.iterdir()) == ["late.tests.jsonl", "late.toml"]


@given(st.text(min_size=1), st.text())
def test_whatever_a_model_writes_and_a_person_asks(tmp_path_factory, code, question):
    code = code_of(f"```\n{code}\n```")
    path = tmp_path_factory.getbasetemp() / "late.toml"
    kept = msgspec.structs.replace(KEPT, pieces=(code,), question=question)
    try:
        (code + question).encode()
    except UnicodeEncodeError:
        return  # no program and no question has half of a character
    write(path, kept.approval("ann", "2026-11-22"))
    again = read(path)
    assert again.digest() == kept.digest()
    assert again.params()["pieces"] == (code,)


def test_only_what_was_approved_as_it_stands_is_given_to_run(tmp_path):
    with pytest.raises(SavedProgramError, match="late version 3 is not approved"):
        KEPT.params()
    approved = KEPT.approval("ann", "2026-11-22")
    assert approved.params()["version"] == 3
    changes = {"version": 4, "question": "?", "returns": "text", "pieces": ("submit(2)",), "name": "other"}
    for name, value in changes.items():
        with pytest.raises(SavedProgramError, match="was changed since ann approved it"):
            msgspec.structs.replace(approved, **{name: value}).params()


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x/y", "x.py", "é", "x" * 65])
def test_a_name_is_a_name(name):
    with pytest.raises(SavedProgramError, match="is no name for a program"):
        place_of(name)


def test_a_path_is_taken_as_it_is():
    assert place_of("elsewhere/late.toml") == Path("elsewhere/late.toml")
    assert place_of("late", "kept") == Path("kept/late.toml")
