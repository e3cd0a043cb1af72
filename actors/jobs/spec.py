"""Specification of a job: the user's request, from the command line or Python, for this and later runs."""

from __future__ import annotations

import contextlib
import getpass
import os
from hashlib import sha256
from pathlib import Path

import msgspec

from actors.files.paths import is_remote
from actors.journal.state_folder import STATE_DEFAULT
from actors.programs import loader
from actors.routing.model_spec import ModelSpec
from cortex.programs.batch import Batch
from cortex.programs.shards import sharded
from cortex.state.events import RowsReopened
from cortex.state.program import Program, params_of
from cortex.values.limits import Limits

CONTENT = "content"
"""Key among a job's places: hash of an input without a name of its own; a part of the job's name."""
DIALECT = "dialect"
"""Key among a job's places: properties of the input file that the user gives (``actors.files.dialects.dialect``); a
part of the job's name."""


class JobSpec(msgspec.Struct, kw_only=True):
    """Specification of a job. An empty ``job``: the name is derived from program, input and output."""

    program: Program
    model_spec: ModelSpec = ModelSpec()
    limits: Limits = Limits()
    job: str = ""
    state: str = STATE_DEFAULT
    cluster: str = "auto"
    input: str = ""
    output: str = ""
    fresh: bool = False
    overwrite: bool = False
    """Permission to overwrite an output that holds rows of another job, or of an earlier form of this job."""
    resumed: bool = False
    """True for a job that is continued by its name, by a command that names no output."""
    in_python: bool = False
    """True for a job that is run by Python code, whose errors name parameters instead of options."""
    shards: int = 1
    """Number of child jobs for the rows; 1: no child jobs."""
    keeps_text: bool = True
    """Meaning as in ``JobTerms``."""
    decided: tuple[tuple[int, str], ...] = ()
    """Decisions of the user on message batches in doubt, as in ``Opening``."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Labels of the job's costs in traces and reports: a team, a project. Never secrets."""
    reopened: RowsReopened | None = None
    """Failed rows to ask again at the start of the run."""
    concurrency_given: bool = False
    """True if the user named the concurrency in `limits`, now or in an earlier run."""
    places: dict[str, str] = msgspec.field(default_factory=dict)
    """Further data that a later ``resume`` needs. Never secrets."""

    def runs(self) -> Program:
        """Return the job's program: the program of the rows, or the one that distributes them to shards."""
        return sharded(self.program, self.shards)

    @property
    def permission(self) -> str:
        """Way to give the permission to overwrite, for errors."""
        return "overwrite=True" if self.in_python else "--overwrite"

    @property
    def names(self) -> str:
        """Way to name another job and another output, for errors; empty for a command that has none."""
        if self.resumed:
            return ""
        return "job= and output=" if self.in_python else "--job and -o"

    def named(self) -> str:
        """Return the job's name, which does not depend on the number of shards."""
        if self.job:
            return self.job
        where, program = loader.place_of(type(self.program)), self.program
        if isinstance(program, Batch):  # the name is wanted before the input is read, which tells the API
            program = msgspec.structs.replace(program, api=msgspec.UNSET)
        parts = [where, params_of(program).decode(), whole(self.input), whole(self.output)]
        parts += [self.places[key] for key in (CONTENT, DIALECT) if key in self.places]
        stem = Path(self.input).name.split(".")[0] if self.input not in ("", "-") else ""
        name = where.rpartition(":")[2].rpartition("<locals>.")[2].lower()
        base = "-".join(part for part in (name, _safe(stem)) if part)
        return f"{base}-{sha256(chr(0).join(parts).encode()).hexdigest()[:8]}"


def whole(path: str) -> str:
    """Return a path as stored with the job: absolute, so that it is valid from any folder."""
    return path if path in ("", "-") or is_remote(path) else os.path.realpath(os.path.expanduser(path))


def _safe(text: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "-" for c in text).strip("-")[:40]


def who() -> str:
    """Return the user's name, for events that record an author."""
    with contextlib.suppress(Exception):  # a bare container has no user name
        return getpass.getuser()
    return "somebody"
