"""The form of journals changes on purpose only: what is another shows as a difference of text (``tests/journals``)."""

from __future__ import annotations

import msgspec
import pytest

from cortex.journal import codec
from cortex.state import events
from tests.journals import form

HOW = (
    "the form of journals has changed. If `FORMAT` in cortex/journal/codec.py was in a release, raise it. Then "
    "`python -m tests.journals.form`, and until the release `python -m tests.journals.make`: tests/journals/README.md"
)


def test_the_form_of_journals_is_the_one_that_was_written_down() -> None:
    assert form.form().splitlines() == form.WHERE.read_text().splitlines(), HOW


def test_a_field_more_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    more = msgspec.defstruct("Turn", [*_fields(events.Turn), ("more", int, 0)], array_like=True, module="cortex.state.events")
    monkeypatch.setattr(events, "Turn", more)
    assert form.form().splitlines() != form.WHERE.read_text().splitlines()


def test_the_oldest_form_that_is_read_is_no_newer_than_the_one_that_is_written() -> None:
    assert codec.OLDEST <= codec.FORMAT


def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, object, object]]:
    return [
        (field.name, field.type, field.default)
        for field in msgspec.structs.fields(kind)
    ]  # fmt: skip
