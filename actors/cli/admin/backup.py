"""``backup``: full copy of the state folder, made while its jobs run."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import msgspec

from actors.cli.jobs.job_state import standing_of
from actors.cli.jobs.rendering import RESUMABLE, size_text
from actors.cli.jobs.settings import named_folder
from actors.cli.options.errors import COMPLETE, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError, UserError
from actors.files.local.new_files import is_dangling
from actors.journal.journal import StateFolder


def backup(to: str, options: Options) -> int:
    """Run ``cortex backup`` and return the exit code."""
    source, place = named_folder(options), Path(os.path.realpath(os.path.expanduser(to)))
    if is_dangling(os.path.expanduser(to)):
        raise CommandError(f"{to} is a link to no folder: name a folder that is not there")
    source.backup(place)
    copy = StateFolder(place)
    jobs = [name for name in copy.jobs() if "~" not in name]
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    rest = [name for name in jobs if _rests(copy, name)]
    if options.as_json:
        facts = {"folder": str(place), "jobs": jobs, "resumable": rest, "size_bytes": size}
        print(msgspec.json.encode(facts).decode())
    print_error(f"{len(jobs):,} {'job' if len(jobs) == 1 else 'jobs'} copied to {place}, {size_text(size)}")
    if rest:
        named = rest[0] if len(rest) == 1 else "JOB"
        print_error(
            f"{len(rest):,} of them can be resumed there: cortex resume {named} --state {shlex.quote(str(place))}"
        )
    return COMPLETE


def _rests(copy: StateFolder, name: str) -> bool:
    try:
        return standing_of(copy, name).outcome in RESUMABLE
    except (UserError, ValueError):
        return False
