"""Journals that stand under another job's name: each door tells it, since the journal itself is whole."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from actors.journal import journal as journals
from actors.journal.errors import Damaged
from actors.journal.journal import Journal, StateFolder
from cortex.journal import codec
from cortex.state import events
from tests.support.state_machine_harness import terms

NAMES = ("a~1", "a~2", "b")


def _made(folder: StateFolder) -> None:
    for name in NAMES:
        with closing(folder.journal(name, create=True)) as source:
            source.take_epoch(b"{}")
            batch = codec.encode_batch([events.Opened(terms(job=name), 1)])
            source.append([codec.encode_turn(1.0, [batch], b"", b"", 0.0)])


def _exchange(folder: StateFolder, state: str, one: str, other: str) -> None:
    for name, to in ((one, "x"), (other, one), ("x", other)):
        if state.startswith("postgres"):
            folder._link.count("UPDATE cortex_jobs SET name = %s WHERE name = %s", (to, name))  # type: ignore[attr-defined]
        else:
            os.rename(Path(state, "jobs", f"{name}.sqlite"), Path(state, "jobs", f"{to}.sqlite"))


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("other", ["a~2", "b"])
def test_a_journal_that_is_another_jobs_is_told(
    state: str, old: bool, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``old``: journals of earlier releases, whose openings alone tell whose they are."""
    folder = StateFolder(state).prepare()
    set_meta = Journal.set_meta
    with monkeypatch.context() as patch:
        if old:
            patch.setattr(
                Journal, "set_meta", lambda self, key, value: key == journals.NAME or set_meta(self, key, value)
            )
        _made(folder)
    for name in NAMES:
        with closing(folder.journal(name)) as source:
            assert (source.meta(journals.NAME) is None) is old
    _exchange(folder, state, "a~1", other)
    for name, whose in (("a~1", other), (other, "a~1")):
        for forgotten_too in (False, True):
            with pytest.raises(Damaged, match=f"job {name} is damaged: its journal is that of the job '{whose}'.*backup"):
                folder.journal(name, forgotten_too=forgotten_too)
    _exchange(folder, state, "a~1", other)
    with closing(folder.journal("a~1")) as source:
        source.take_epoch(b"{}")
        assert source.meta(journals.NAME) == b"a~1", "the next writer of an old journal names it"


def test_a_job_that_never_began_has_no_name_to_compare(state: str) -> None:
    folder = StateFolder(state).prepare()
    folder.journal("a", create=True).close()
    folder.journal("a").close()
    with closing(folder.journal("a")) as source:
        source.take_epoch(b"{}")
        source.forget(b"{}")
    folder.journal("a", forgotten_too=True).close()
