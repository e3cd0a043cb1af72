"""``inspect --at``: K after a turn."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.cli.inspection.text_lines import OutputLines, time_of
from actors.cli.inspection.timeline_text import json_text, money
from actors.cli.options.errors import COMPLETE, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.inspection.replay import begun, taken_again
from actors.inspection.span import TurnSpan
from actors.inspection.state_view import goal_facts, moment
from actors.inspection.target import Target, spans, subject_of
from actors.journal.journal import Journal
from cortex.journal import codec
from cortex.state.state import State

_SHOWN_MAX = 20
_SECTIONS = ("rows", "goals", "items", "results", "ledger", "retries", "failures", "estimate")


def show_moment(source: Journal, job: str, at: int, subject: str, options: Options) -> int:
    """Run ``cortex inspect JOB [GOAL] --at SEQ`` and return the exit code."""
    if not 1 <= at <= source.seq:
        raise CommandError(f"{job} has turns 1 to {source.seq:,}, and no turn {at:,}")
    span = next((each for each in reversed(spans(source)) if each.after < at), None)
    span = span or next(each for each in reversed(spans(source, whole=True)) if each.after < at)
    named = subject_of(source, subject)[0] if subject else None
    if span.program is None:
        return _account(source, job, at, options)
    k = _k_at(source, span, at)
    facts = moment(k) if named is None else _of_one(k, named)
    facts = {"job": job, "turn": at, "at_s": k.at_s, **facts}
    if options.as_json:
        print(msgspec.json.encode(facts).decode())
        return COMPLETE
    show = OutputLines()
    show.line("bold", 0, f"{job} after turn {at:,}, {time_of(k.at_s)}")
    if named is None:
        _show(show, facts)
    else:
        for name, value in facts.items():
            if name not in ("job", "turn", "at_s") and value not in (None, "", [], {}):
                show.labelled(name, time_of(value) if name.endswith("_at_s") else json_text(value))
    return COMPLETE


def _k_at(source: Journal, span: TurnSpan, at: int) -> State:
    start = begun(source, span, at)
    k = start[1]
    for taken in taken_again(source, span, start, lambda goal, what, seen: None, at):
        taken.take()
    return k


def _of_one(k: State, subject: Target) -> dict[str, Any]:
    found = k.goals.get(subject.goal)
    if subject.row:
        found = next((goal for goal in k.goals.values() if goal.row == subject.row), None)
    if found is not None:
        return goal_facts(k, found)
    made = subject.goal < k.next_goal if subject.goal else False
    text = "ended and removed from K" if made else "not in K: not made yet, or ended and removed"
    return {"goal": subject.goal or None, "row": subject.row, "status": text}


def _account(source: Journal, job: str, at: int, options: Options) -> int:
    """Show the account of the turns, for a job whose program can no longer replay them. Return the exit code."""
    blob = source.account(at)
    at_s = next(turn.at_s for _, turn in source.turns(at - 1))
    note = f"the program of {job} has changed since, or is gone: only the totals in its turns are shown"
    facts: dict[str, Any] = {"job": job, "turn": at, "at_s": at_s, "note": note}
    if blob:
        known = codec.decode_account(blob)
        facts |= {
            "outcome": known.outcome, "goals": {"made": known.next_goal - 1}, "in_batches": known.in_batches,
            "ledger": msgspec.structs.asdict(known.ledger),
        }  # fmt: skip
    if options.as_json:
        print(msgspec.json.encode(facts).decode())
        return COMPLETE
    print_error(note)
    show = OutputLines()
    show.line("bold", 0, f"{job} after turn {at:,}, {time_of(at_s)}")
    for name in ("outcome", "goals", "in_batches", "ledger"):
        if name in facts:
            show.labelled(name, json_text(facts[name]))
    return COMPLETE


def _show(show: OutputLines, facts: dict[str, Any]) -> None:
    state = facts["outcome"] or "running"
    show.labelled("state", state + (f": {facts['why']}" if facts["why"] else ""))
    for each in facts["waits"]:
        show.labelled("waits", each)
    if facts["paused"]:
        show.labelled("paused", f"{facts['paused']['kind']}: {facts['paused']['message']}")
    for name in _SECTIONS:
        if figures := _figures(facts[name]):
            show.labelled(name, figures)
    for each in facts["routes"]:
        held = {name: each[name] for name in ("why", "blocked", "held_s") if each[name]}
        more = f", {_figures(held)}" if held else ""
        show.labelled("route", f"{each['route']}: {each['in_flight']} of {each['permits']} permits in use{more}")
    _some(show, "in flight", facts["in_flight"], _flight)
    for name in ("errands", "submissions", "awaited"):
        _some(show, name, facts[name], json_text)
    _some(show, "votes", list(facts["elections"].items()), lambda pair: f"on goal {pair[0]}: {_figures(pair[1])}")
    show.labelled("limits", _figures(facts["limits"]))


def _flight(each: dict[str, Any]) -> str:
    text = f"{each['call']} attempt {each['attempt']}: {each['age_s']:.3f} s, of {each['route']}"
    text += f", {money(each['reserved']['usd'])} and {each['reserved']['tokens']:,} tokens reserved"
    return text + (", no longer awaited" if each["abandoned"] else "") + (", a probe" if each["probe"] else "")


def _some(show: OutputLines, label: str, each: list[Any], answer: Any) -> None:
    for one in each[:_SHOWN_MAX]:
        show.labelled(label, answer(one))
    if len(each) > _SHOWN_MAX:
        show.labelled("", f"and {len(each) - _SHOWN_MAX:,} more: --json has all")


def _figures(facts: dict[str, Any]) -> str:
    """Return figures as one line; empty values are left out."""
    lines = []
    for name, value in facts.items():
        if value in (None, "", {}, [], 0) and name != "live":
            continue
        lines.append(f"{name.replace('_', ' ')} {_figures(value) if isinstance(value, dict) else json_text(value)}")
    return ", ".join(lines)
