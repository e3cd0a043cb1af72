"""``verify``: whether the journal of a job, and of its child jobs, is what was written."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import msgspec

from actors.cli.jobs.settings import named_folder
from actors.cli.options.errors import COMPLETE, FAILED, print_error
from actors.cli.options.options import Options
from actors.common.text_table import bounded_line
from actors.history import costs
from actors.history.catalog import in_use_message
from actors.journal.journal import Damaged, JobHeld, Journal, StateFolder, StoreError
from cortex.state import events

NAMED_MAX = 5
"""Damaged turns that a line names; the others are counted."""


def verify(job: str, cut: bool, options: Options) -> int:
    """Run ``cortex verify`` and return the exit code: 0 if all is whole, 1 if something is damaged."""
    folder = named_folder(options)
    if cut:
        try:
            for name in _names(folder, job):
                if kept := folder.cut(name):
                    print_error(f"what could be read of the log of {name} is in its journal; the log is kept as {kept}")
        except JobHeld:
            raise StoreError(in_use_message(folder, job)) from None
    found = [_verified(folder, name) for name in _names(folder, job)]
    found += [_missing(folder, each["job"], name) for each in found for name in each.pop("missing")]
    if options.as_json:
        whole = all(each["whole"] for each in found)
        print(msgspec.json.encode({"job": job, "whole": whole, "journals": found}).decode())
    for each in found:
        if not options.as_json:
            print(bounded_line(_line(each)))
        if each["why"]:
            print_error(each["why"])
    return COMPLETE if all(each["whole"] for each in found) else FAILED


def _names(folder: StateFolder, job: str) -> list[str]:
    return [job, *sorted(name for name in folder.jobs() if name.startswith(f"{job}~"))]


def _verified(folder: StateFolder, name: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "job": name, "whole": False, "turns": 0, "unsealed": 0, "damaged_turns": [], "damaged_snapshots": [], "why": "",
        "missing": [],
    }  # fmt: skip
    try:
        with closing(folder.journal(name, forgotten_too=True)) as source:
            facts["turns"] = source.seq
            source.see_structure()
            for kind, number in source.damages():
                if kind == "unsealed":
                    facts["unsealed"] += 1
                else:
                    facts["damaged_turns" if kind == "turn" else "damaged_snapshots"].append(number)
            if facts["damaged_turns"]:
                facts["why"] = str(source.damaged(facts["damaged_turns"][0]))
            else:
                facts["missing"] = [each for each in _children(source) if not folder.has(each)]
    except Damaged as error:
        facts["why"] = str(error)
    facts["whole"] = not (facts["why"] or facts["damaged_snapshots"])
    return facts


def _children(source: Journal) -> list[str]:
    """Return the names of the child jobs that certainly have had a journal: one began that reported as a shard, was
    billed, or ended without a failure."""
    found = set[int]()
    # the earlier turns of a fork are those of another job
    after = max(int(source.meta(costs.OWN) or 0), source.opened_at())
    for tag in (b"reported", b"returned"):
        for _, turn in source.turns_with((tag,), after):
            for event in (event for batch in turn.batches for event in batch):
                match event:
                    case events.ShardReported():
                        found.add(event.goal)
                    case events.ChildJobEnded():
                        if event.report or not event.failure or event.input_tokens or event.assumed_tokens:
                            found.add(event.goal)
    return [f"{source.job}~{goal}" for goal in sorted(found)]


def _missing(folder: StateFolder, parent: str, name: str) -> dict[str, Any]:
    why = (
        f"job {parent} is damaged: the journal of its child job {name} is missing; bring back a backup of its state "
        f"folder {folder.address}"
    )
    return {
        "job": name, "whole": False, "turns": 0, "unsealed": 0, "damaged_turns": [], "damaged_snapshots": [],
        "why": why,
    }  # fmt: skip


def _line(facts: dict[str, Any]) -> str:
    turns, bad = facts["turns"], facts["damaged_turns"]
    said = []
    if bad:
        named = ", ".join(f"{seq:,}" for seq in bad[:NAMED_MAX]) + (" and more" if len(bad) > NAMED_MAX else "")
        said.append(f"{len(bad):,} of {turns:,} turns are damaged or missing: {named}")
        said.append(f"turns up to {bad[0] - 1:,} are whole")
    elif facts["why"]:
        said.append("damaged")
    else:
        said.append(f"{turns:,} turns are whole")
    if facts["damaged_snapshots"]:
        said.append(f"{len(facts['damaged_snapshots'])} snapshots are damaged: their turns are replayed instead")
    if facts["unsealed"]:
        said.append(f"{facts['unsealed']:,} turns are of an earlier release, without checksums: they can be read")
    return f"{facts['job']}: {'; '.join(said)}"
