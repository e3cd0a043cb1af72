"""Target of an inspection: a goal by number, a call by id, or a row by key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from actors.common.errors import UserError
from actors.history.catalog import last_terms, program_of
from actors.inspection.span import TurnSpan
from actors.journal.errors import never_began
from actors.journal.journal import Journal
from actors.journal.state_folder import advised
from cortex.journal import codec
from cortex.state import events

_EXPLICIT = re.compile(r"(goal|row|call):(.+)", re.DOTALL)
_CALL = re.compile(r"(\d+)/(.+)", re.DOTALL)


class TargetNotFound(UserError):
    """No object of the job has this name, or several have. The message is one line."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Goal, call or row. Either the goal or the row is given; a refused row has no goal."""

    goal: int = 0
    row: str = ""
    sample: str = ""
    """Sample of one call of the goal; empty: all calls."""
    fed_at: int = 0
    """Turn in which the row was read."""
    refusal: str = ""
    """Reason why the row was refused; empty if it was not."""


def spans(source: Journal, whole: bool = False) -> list[TurnSpan]:
    """Return the spans of the job, the first one first; only the last span unless ``whole``."""
    _find_ancestors(source)
    found: list[TurnSpan] = []
    for seq, turn in source.openings() if whole else _last_opening(source):
        opened = next(event for batch in turn.batches for event in batch if isinstance(event, events.Opened))
        if found:
            found[-1] = msgspec.structs.replace(found[-1], upto=seq - 1)
        program = program_of(opened.terms)
        found.append(TurnSpan(seq - 1, source.seq, opened.terms, opened.first_goal, program))
    if not found:
        raise TargetNotFound(never_began(source.job))
    return found


def _find_ancestors(source: Journal) -> None:
    """Load the programs of the parent jobs: a child job's program may be found only through them."""
    ends = [place for place, letter in enumerate(source.job) if letter == "~"]
    for name in (source.job[:end] for end in ends):
        terms = last_terms(source.folder, name) if source.folder is not None else None
        if terms is not None:
            program_of(terms)


def _last_opening(source: Journal) -> Iterator[tuple[int, events.Turn]]:
    for seq, turn in source.turns(source.opened_at()):
        if codec.opening(turn) is not None:
            yield seq, turn
        return


def subject_of(source: Journal, text: str) -> tuple[Target, TurnSpan]:
    """Return the target that a text names, and its span of the journal. Raises ``TargetNotFound``."""
    job = source.job
    explicit = _EXPLICIT.fullmatch(text)
    how, name = (explicit[1], explicit[2]) if explicit else ("", text)
    last = spans(source)[0]
    found: list[Target] = []
    if how in ("", "goal") and name.isdecimal() and int(name):
        found.append(Target(goal=int(name)))
    if how in ("", "call") and (call := _CALL.fullmatch(name.removeprefix(f"{job}/"))):
        found.append(Target(goal=int(call[1]), sample=call[2]))
    if how in ("", "row"):
        found += _rows(source, last, name)
    if not found:
        lists = advised(source.folder, "inspect", job, "--failed")
        raise TargetNotFound(f"{job} has no goal, call or row {text!r}: `{lists}` lists what failed")
    if [each.sample for each in found] == ["", ""] and _goal_of(source, last, found[1]) == found[0].goal:
        found.pop()  # the goal of this number was made for the row of this key
    if len(found) > 1:
        forms = " or ".join(_form(each, name) for each in found)
        raise TargetNotFound(f"{name!r} may be more than one thing in {job}: give {forms}")
    return found[0], _span(source, last, found[0])


def _goal_of(source: Journal, span: TurnSpan, row: Target) -> int:
    """Return the goal that was made for a row; 0 if there is none, or if the span has no program to replay with."""
    from actors.inspection.replay import begun, taken_again

    if span.program is None or row.refusal:
        return 0
    for taken in taken_again(source, span, begun(source, span, row.fed_at - 1), _ignore, row.fed_at):
        before = taken.k.next_goal
        taken.take()
        if taken.seq == row.fed_at:
            made = (goal for goal in range(before, taken.k.next_goal) if goal in taken.k.goals)
            return next((goal for goal in made if taken.k.goals[goal].row == row.row), 0)
    return 0


def _ignore(goal: int, what: str, seen: dict[str, Any]) -> None:
    """Ignore the decision: only K after the turn is used."""


def _form(subject: Target, name: str) -> str:
    kind = "row" if subject.row else "call" if subject.sample else "goal"
    return f"{kind}:{name}"


def _span(source: Journal, last: TurnSpan, subject: Target) -> TurnSpan:
    if subject.row or subject.goal >= last.first_goal:
        return last
    return [each for each in spans(source, whole=True) if each.first_goal <= subject.goal][-1]


def _rows(source: Journal, last: TurnSpan, key: str) -> list[Target]:
    """Return the row of this key, as last read since the job was last opened; empty if there is none."""
    if not last.terms.streams:
        return []
    position = 0
    found: list[Target] = []
    for seq, turn in source.turns_with((b"fed", key.encode()), last.after):
        for batch in turn.batches:
            for event in batch:
                if isinstance(event, events.RowsRead) and event.start >= position:
                    position = event.position
                    row = next((row for row in event.rows if row.key == key), None)
                    if row is not None:
                        found = [Target(row=key, fed_at=seq, refusal=row.refusal)]
    return found
