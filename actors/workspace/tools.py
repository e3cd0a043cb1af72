"""Tools of ``ralph``: open the folder, make one round in it, close it. Each is idempotent.

A round that is repeated, because its worker died or its outcome is unknown, first restores the folder to the state
before that round. So nothing is done twice, and no half of a round remains.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.workspace.check import checked, script_of
from actors.workspace.edits import EditRefused, make, planned
from actors.workspace.snapshots import FolderSnapshots
from actors.workspace.tree import FolderRefused, digest_of, tree_of
from actors.workspace.view import matching, view_of

FIRST = 1


def folder_opened(
    folder: str, task: str, check: str, check_timeout_s: float, show: list[str], view_bytes: int, idempotency_key: str,
) -> dict[str, Any]:  # fmt: skip
    """Claim the folder for the job, check it, and take the first snapshot.

    A round that an earlier run of the job left unfinished is undone first. Raises ``FolderRefused``.
    """
    keeping = FolderSnapshots(_place(folder))
    with keeping.held(_job(idempotency_key)):
        begun = keeping.begun()
        if begun is not None and keeping.has(begun) and not keeping.has(begun + 1):
            keeping.restore(begun)
        keeping.nothing_begun()
        found = checked(keeping, check, check_timeout_s)
        return _seen(keeping, FIRST, found, [task], show, [], view_bytes)


def folder_round(
    folder: str, number: int, edits: list[dict[str, Any]], task: str, check: str, check_timeout_s: float,
    show: list[str], protect: list[str] | None, view_bytes: int, idempotency_key: str,
) -> dict[str, Any]:  # fmt: skip
    """Apply a round's edits to the folder as it was before that round, and check it.

    Raises ``FolderRefused`` if the round cannot be finished; the folder is then restored, if it can be written at all.
    """
    keeping = FolderSnapshots(_place(folder))
    with keeping.held(_job(idempotency_key)):
        refused = _begun(keeping, number)
        try:
            refused = refused or _applied(keeping, number, edits, check, protect)
            found = checked(keeping, check, check_timeout_s)
            changed = [] if refused else [edit["path"] for edit in edits]
            seen = _seen(keeping, number + 1, found, [task], show, changed, view_bytes)
        except FolderRefused:
            if keeping.begun() == number:
                with contextlib.suppress(FolderRefused, OSError):
                    keeping.restore(number)
            raise
        return {**seen, "refused": refused, "changed": changed}


def folder_closed(folder: str, idempotency_key: str) -> None:
    """Remove the job's snapshots at the end of the work. Does nothing if the folder is gone or another job's."""
    place = Path(folder).expanduser()
    if place.is_dir():
        keeping = FolderSnapshots(place)
        with contextlib.suppress(FolderRefused), keeping.held(_job(idempotency_key)):
            keeping.close()


def _job(key: str) -> str:
    return key.partition("/")[0]


def _begun(keeping: FolderSnapshots, number: int) -> str:
    """Restore the folder to the state before this round. Return why nothing may be applied; empty if it may."""
    if not keeping.has(number):
        return "the folder's snapshot is gone: nothing was applied"
    if keeping.begun() == number:
        keeping.restore(number)
    elif digest_of(tree_of(keeping.folder)) != digest_of(keeping.kept(number)):
        return "somebody else changed the folder meanwhile: nothing was applied"
    return ""


def _applied(
    keeping: FolderSnapshots, number: int, edits: list[dict[str, Any]], check: str, protect: Sequence[str] | None
) -> str:
    """Apply the edits. Return why nothing was applied; empty if all edits were."""
    tree = keeping.kept(number)
    patterns = script_of(check) if protect is None else protect
    try:
        for edit in edits:
            if matching([edit["path"]], patterns):
                raise EditRefused(f"{edit['path']} may not be changed: it belongs to the check")
        texts = planned(keeping.folder, tree, edits)
    except EditRefused as error:
        keeping.begin(number)  # the check may change the folder in any case
        return str(error)
    keeping.begin(number)
    make(keeping.folder, texts)
    return ""


def _seen(
    keeping: FolderSnapshots, number: int, found: dict[str, Any], texts: list[str], show: list[str], changed: list[str],
    view_bytes: int,
) -> dict[str, Any]:  # fmt: skip
    """Take the snapshot after a round, which is that before the next one, and return the view of the folder."""
    tree = keeping.take(number)
    view = view_of(
        keeping.folder, tree, show=show, changed=changed, texts=[found["said"], *texts], bytes_max=view_bytes
    )
    return {"folder": str(keeping.folder), "number": number, "check": found, "view": view}


def _place(folder: str) -> Path:
    place = Path(folder).expanduser()
    if not place.is_dir():
        where = "" if place.is_absolute() else f" (looked in {Path.cwd()})"
        raise FolderRefused(f"no folder {folder}{where} on the machine whose worker was asked")
    return place.resolve()
