"""What a user asks for: the order of one job, as the command line and Python give it and a later run finds it again."""

from __future__ import annotations

import contextlib
import getpass
import os
from hashlib import sha256
from pathlib import Path

import msgspec

from actors.files.paths import is_remote
from actors.programs import loader
from actors.routing.model_spec import ModelSpec
from cortex.programs.shards import sharded
from cortex.state.events import RowsReopened
from cortex.state.program import Program, params_of
from cortex.values.limits import Limits

STATE_DEFAULT = ".cortex"
CONTENT = "content"
"""Among an order's places: hash over an input that has no name of its own. It is a part of the job's name."""


class JobSpec(msgspec.Struct, kw_only=True):
    """What a user asks for. ``job`` may be empty: then its name derives from program, input and output."""

    program: Program
    model_spec: ModelSpec = ModelSpec()
    limits: Limits = Limits()
    job: str = ""
    state: str = STATE_DEFAULT
    cluster: str = "auto"
    input: str = ""
    output: str = ""
    fresh: bool = False
    shards: int = 1
    """Child jobs that the rows are dealt to; 1: the job asks them itself."""
    keeps_text: bool = True
    """As in ``Terms``."""
    decided: tuple[tuple[int, str], ...] = ()
    """What the user says became of submissions that code cannot decide about, as ``Opening`` has it."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """What traces and reports are to tell the job's costs by: a team, a project. Never a secret."""
    reopened: RowsReopened | None = None
    """Rows that failed and are to be asked again, before the run goes on."""
    places: dict[str, str] = msgspec.field(default_factory=dict)
    """Whatever else a later ``resume`` needs; never a secret."""

    def runs(self) -> Program:
        """The program of the job: that of its rows, or the one that deals them to shards."""
        return sharded(self.program, self.shards)

    def named(self) -> str:
        """The job's name: the same, however many shards it has."""
        if self.job:
            return self.job
        where = loader.place_of(type(self.program))
        parts = [where, params_of(self.program).decode(), whole(self.input), whole(self.output)]
        parts += [self.places[CONTENT]] if CONTENT in self.places else []
        stem = Path(self.input).name.split(".")[0] if self.input not in ("", "-") else ""
        name = where.rpartition(":")[2].rpartition("<locals>.")[2].lower()
        base = "-".join(part for part in (name, _safe(stem)) if part)
        return f"{base}-{sha256(chr(0).join(parts).encode()).hexdigest()[:8]}"


def whole(path: str) -> str:
    """A path as a job keeps it, so that it means the same from any folder."""
    return path if path in ("", "-") or is_remote(path) else os.path.realpath(os.path.expanduser(path))


def _safe(text: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "-" for c in text).strip("-")[:40]


def who() -> str:
    """The person at the keyboard, for events that say who did something."""
    with contextlib.suppress(Exception):  # no name in a bare container
        return getpass.getuser()
    return "somebody"
