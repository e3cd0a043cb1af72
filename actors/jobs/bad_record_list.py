"""Place of a job's list of bad records (``actors.files.bad_records``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from actors.files.bad_records import SUFFIX, BadRecordFile
from actors.files.errors import SinkError
from actors.files.local.new_files import is_dangling
from actors.files.paths import is_remote
from actors.files.sinks.jsonl_sink import missing_folder
from actors.jobs.spec import JobSpec, whole
from actors.journal.journal import StateFolder
from cortex.values.limits import JobTerms

BAD = "bad"
"""Key among a job's places: file of the list, if the user named one."""


def place_of_list(folder: StateFolder, job: str, places: Mapping[str, str], output: str) -> Path:
    """Return the file of the list: the one that the user named, or a file beside the output. For an output that is no
    file of this machine, a file of the state folder.
    """
    if named := places.get(BAD):
        return Path(named)
    if output in ("", "-") or is_remote(output) or (Path(output).exists() and not Path(output).is_file()):
        return folder.beside(job, SUFFIX)
    return Path(whole(output) + SUFFIX)


def list_of(folder: StateFolder, order: JobSpec) -> BadRecordFile:
    """Return the list of a job's bad records, to be written by the check of its input.

    A job that keeps no text lists none in the state folder. Another job has a copy of the list there.
    """
    path, named = place_of_list(folder, order.named(), order.places, order.output), BAD in order.places
    own = folder.beside(order.named(), SUFFIX)
    text, copy = order.keeps_text or path != own, own if order.keeps_text and path != own else None
    return BadRecordFile(
        path, always=named, overwrite=order.overwrite, text=text, copy=copy, movable=not order.resumed
    )


def restored(folder: StateFolder, job: str, terms: JobTerms) -> Path | None:
    """Write a job's list from its copy in the state folder if it is gone, and return its file; None if it was not
    written. Raises ``SinkError``.
    """
    path, own = place_of_list(folder, job, terms.places, terms.places.get("output", "")), folder.beside(job, SUFFIX)
    return path if path != own and BadRecordFile(path, copy=own, movable=False).restore() else None


def named_list(path: str, others: tuple[str, ...], overwrite: bool = False) -> str:
    """Return the path of a list that the user named, as kept with the job. ``others``: files of the same job.
    ``overwrite`` permits a link whose target is missing.

    Raises ``SinkError`` if no list can be written there.
    """
    if path == "-" or is_remote(path):
        raise SinkError(f"--bad {path}: name a file of this machine")
    place = Path(whole(path))
    if str(place) in {whole(each) for each in others}:
        raise SinkError(f"--bad {path} is the input or the output of the job: name another file")
    if place.is_dir() or not place.parent.is_dir():
        wrong = "it is a folder: name a file in it" if place.is_dir() else missing_folder(place.parent)
        raise SinkError(f"--bad {path}: {wrong}")
    if is_dangling(os.path.expanduser(path)) and not overwrite:
        raise SinkError(f"--bad {path} is a link to no file: name another file, or give --overwrite")
    return str(place)
