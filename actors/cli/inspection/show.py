"""``inspect``: turns of a job, history of a goal, failures, and K after a turn, from the journal alone."""

from __future__ import annotations

import re
import sys
from collections import deque
from contextlib import closing, suppress
from itertools import islice
from typing import Any

import msgspec

from actors.cli.inspection.failure_groups import FailureList, line_of
from actors.cli.inspection.text_lines import OutputLines, time_of
from actors.cli.inspection.timeline_text import details, heading
from actors.cli.jobs.causes import see_cause
from actors.cli.jobs.job_state import standing_of
from actors.cli.jobs.rendering import headline, why
from actors.cli.jobs.settings import named_folder
from actors.cli.options.errors import COMPLETE, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError, UserError
from actors.common.text_table import bounded_line
from actors.history.catalog import last_terms
from actors.jobs.summary import UNREADABLE, counted, without_results
from actors.journal.errors import never_began
from actors.journal.journal import Journal, StateFolder
from actors.journal.state_folder import advised

_QUIET = frozenset({"granted", "written", "ticked"})
CHILDREN_MAX = 100
"""Most child goals that are listed by number."""


class ShowOptions(msgspec.Struct, kw_only=True):
    """Arguments of ``cortex inspect``."""

    job: str
    subject: str = ""
    failed: bool = False
    at: int | None = None
    first: int = 0
    count: int = 40
    grouped: bool = False


def inspect(wanted: ShowOptions, options: Options) -> int:
    """Run ``cortex inspect`` and return the exit code."""
    if wanted.failed and (wanted.subject or wanted.at is not None):
        raise CommandError("--failed lists what failed: give no goal and no --at with it")
    if wanted.grouped and (not wanted.failed or options.as_json):
        raise CommandError("--grouped is a form of the text of --failed: give it with --failed, without --json")
    folder, wanted = named_folder(options), _of_child(wanted)
    source = folder.journal(wanted.job)
    try:
        if not source.seq:
            raise CommandError(never_began(wanted.job))
        if wanted.at is not None:
            from actors.cli.inspection.state_at import show_moment

            return show_moment(source, wanted.job, wanted.at, wanted.subject, options)
        if wanted.failed:
            return _failures(source, wanted, options)
        if wanted.subject:
            shard = _shard_of(folder, source, wanted)
            return inspect(shard, options) if shard is not None else _story(folder, source, wanted, options)
        return _turns(folder, source, wanted, options)
    finally:
        source.close()


def _of_child(wanted: ShowOptions) -> ShowOptions:
    """Return the arguments with the journal of the child job, if a call of a child is named in full."""
    named = re.fullmatch(rf"(?:call:)?({re.escape(wanted.job)}(?:~\d+)+)/(\d+/.+)", wanted.subject, re.DOTALL)
    return msgspec.structs.replace(wanted, job=named[1], subject=f"call:{named[2]}") if named else wanted


def _shard_of(folder: StateFolder, source: Journal, wanted: ShowOptions) -> ShowOptions | None:
    """Return the arguments for the shard that holds the row; None if the job itself has it, or no shard has."""
    from actors.history.result_history import shard_names
    from actors.inspection.target import TargetNotFound, subject_of
    from actors.maintenance.offline_edits import loaded

    subject = f"row:{wanted.subject}" if wanted.subject.isdecimal() else wanted.subject  # only shards have rows
    for name in filter(folder.has, shard_names(source, loaded)):
        with closing(folder.journal(name)) as part, suppress(TargetNotFound):
            subject_of(part, subject)
            return msgspec.structs.replace(wanted, job=name, subject=subject)
    return None


def _turns(folder: StateFolder, source: Journal, wanted: ShowOptions, options: Options) -> int:
    from actors.inspection.turn_list import turns_of

    job, first = wanted.job, wanted.first
    if first > source.seq:
        raise CommandError(f"{job} has turns 1 to {source.seq:,}, and no turn {first:,}")
    if options.as_json:
        for line in turns_of(source, max(0, first - 1)):
            print(msgspec.json.encode(line).decode())
        return COMPLETE
    _head(folder, job)
    lines = (line for line in turns_of(source, max(0, first - 1)) if _loud(line))
    some = list(islice(lines, wanted.count)) if first else list(deque(lines, maxlen=wanted.count))
    for line in some:
        print(bounded_line(f"{line['turn']:>7}  {time_of(line['at_s'])}  {'; '.join(line['said'])}"))
    left = source.seq - len(some)
    if left:
        print_error(
            f"{job} has {source.seq:,} turns; --from N shows others, --json all; turns with only permits, time or "
            "output are left out"
        )
    return COMPLETE


def _loud(line: dict[str, Any]) -> bool:
    return not _QUIET.issuperset(line["events"]) or any(answer.startswith("the job ends") for answer in line["said"])


def _head(folder: StateFolder, job: str) -> None:
    """Print the state of the job and its reason, as far as its program can be loaded."""
    try:
        status = standing_of(folder, job)
        see_cause(folder, job, status)
    except (UserError, ValueError):
        return
    reason = why(status) or status.facts["waits"]
    print_error(headline(status) + (f"; {reason}" if reason else ""))
    if status.unread_reason:
        print_error(status.unread_reason)


# -- one goal --------------------------------------------------------------------------------------------------------


def _story(folder: StateFolder, source: Journal, wanted: ShowOptions, options: Options) -> int:
    from actors.inspection.goal_timeline import story_of
    from actors.inspection.target import subject_of

    subject, span = subject_of(source, wanted.subject)
    story = story_of(folder, source, subject, span)
    if options.as_json:
        reported = msgspec.to_builtins(story)
        for entry in reported["entries"]:
            if "request" in entry:
                entry["request"] = _parsed(entry["request"])
            if entry.get("reply"):
                entry["reply"]["body"] = _parsed(entry["reply"]["body"])
        print(msgspec.json.encode(reported).decode())
        return COMPLETE
    if not story.entries and story.goal is None:
        raise CommandError(f"{wanted.job} has no {wanted.subject}: {story.note}")
    if story.note:
        print_error(story.note)
    show = OutputLines()
    show.line("bold", 0, _title(story))
    seen: dict[str, int] = {}
    turn = 0
    for entry in story.entries:
        at = f"turn {entry['turn']:,}  {time_of(entry['at_s'])}  " if entry["turn"] != turn else ""
        turn = entry["turn"]
        if at:
            show.line("cyan", 0, at.rstrip())
        other = f"goal {entry['goal']}: " if story.subject["goal"] not in (None, entry["goal"]) else ""
        show.line("bold" if entry["what"] in ("asked", "answered", "ended") else "", 2, other + heading(entry))
        for label, text in details(entry, seen):
            show.labelled(label, text)
    if story.goal is not None:
        many = story.goal["attempts"]
        show.line("", 0, f"{_goal(story)} is {story.goal['status']}, after {many} attempt{'s' * (many != 1)}")
        if children := story.goal.get("children"):
            more = f" and {len(children) - CHILDREN_MAX:,} more" if len(children) > CHILDREN_MAX else ""
            show.line("", 0, f"goals below it: {', '.join(map(str, children[:CHILDREN_MAX]))}{more}")
    return COMPLETE


def _parsed(text: str) -> Any:
    """Return a body decoded from JSON, or as text if it is no JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _goal(story: Any) -> str:
    named = story.subject
    row = f" (row {named['row']})" if named.get("row") else ""
    return f"goal {named['goal']}{row}" if named["goal"] else f"row {named['row']}"


def _title(story: Any) -> str:
    call = f", call {story.subject['call']}" if story.subject.get("call") else ""
    return f"{_goal(story)} of {story.job}{call}"


# -- failures ------------------------------------------------------------------------------------------------------


def _unreadable(folder: StateFolder | None, job: str) -> str:
    """Return the unreadable records of the job's input in words; empty if there are none."""
    terms = last_terms(folder, job) if folder is not None else None
    return without_results(counted(terms.places.get(UNREADABLE, ""))) if terms is not None else ""


def _failures(source: Journal, wanted: ShowOptions, options: Options) -> int:
    from actors.history.result_history import shard_names
    from actors.inspection.target import spans
    from actors.inspection.turn_list import failures_of
    from actors.maintenance.offline_edits import loaded

    folder, parts = source.folder, shard_names(source, loaded)
    if folder is not None and parts:
        for name in filter(folder.has, parts):
            with closing(folder.journal(name)) as part:
                _failures(part, msgspec.structs.replace(wanted, job=name), options)
        if lost := _unreadable(folder, wanted.job):
            print_error(f"{wanted.job}: {lost}")
        return COMPLETE
    span = spans(source)[0]
    if span.program is None:
        print_error(
            f"the program of {wanted.job} has changed since, or is gone: only data of the journal is shown"
        )
    if options.as_json:
        for each in failures_of(source, span):
            print(msgspec.json.encode(each).decode())
        return COMPLETE
    found = FailureList(0 if wanted.grouped else wanted.count)
    in_pipe = not wanted.grouped and not sys.stdout.isatty()  # a program that counts or searches lines gets each
    for each in failures_of(source, span):
        if in_pipe:
            print(bounded_line(line_of(each)))
        found.take(each)
    text = f"{found.count:,} failed of the goals and rows of {wanted.job}"
    command = advised(folder, "inspect", wanted.job)
    for line in () if in_pipe else found.lines():
        print(bounded_line(line))
    if found.grouped and not in_pipe:
        lists = "a pipe without --grouped" if wanted.grouped else f"--count {found.count}, or a pipe,"
        text += f", by kind and message, with the first and the last time: `{command} ROW` or `{command} goal:N` "
        text += f"shows the history of one; {lists} lists all, --json too"
    elif found.count:
        text += f": `{command} goal:N` shows the history of a goal"
    print_error("; ".join(filter(None, (text, _unreadable(folder, wanted.job)))))
    return COMPLETE
