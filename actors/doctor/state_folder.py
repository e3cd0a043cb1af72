"""Checks of the place of journals, by its store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from actors.doctor.checks import DoctorOptions, Finding, wrong
from actors.journal.journal import StoreError
from actors.journal.stores import store_of


def state_folder(asked: DoctorOptions) -> Iterator[Finding]:
    """Check that journals can be written, and how long a commit takes."""
    store = store_of(asked.state)
    try:
        yield from store.load(store.checks).state(asked.state)
    except StoreError as error:
        yield wrong("state", str(error), "correct that, or give a folder of this machine as --state")


def disk(asked: DoctorOptions) -> Iterator[Finding]:
    """Check the free space for more rows, if the store can tell."""
    store = store_of(asked.state)
    with contextlib.suppress(StoreError):  # reported by ``state_folder``
        yield from store.load(store.checks).room(asked.state)
