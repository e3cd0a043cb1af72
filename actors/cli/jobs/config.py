"""``config``: the options that a job runs under, and the source of each."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.cli.jobs.settings import named_folder
from actors.cli.options.errors import COMPLETE
from actors.cli.options.options import ABOUT, RUNNING, TABLE, Options, flag_of
from actors.common.text_table import aligned
from actors.common.units import clock
from actors.history.catalog import last_places, last_state
from actors.jobs.limit_options import OPTIONS as LIMITED
from actors.jobs.limit_options import shown_bound
from actors.journal.journal import StateFolder, TextRedacted
from cortex.journal import codec
from cortex.state import events
from cortex.state.state import State
from cortex.values.display import clipped
from cortex.values.limits import Limits

CONFIG = "config"
"""Key among a job's places: the given options with their sources, as JSON."""
_NOT_KEPT = frozenset({"notify", "as_json", "verbose", "job", "state", "overwrite", "fresh"})
DEFAULT = "default"
PLACES = ("program", "input", "output")
"""Options whose values stand among the job's places; only their sources are kept under ``CONFIG``."""
SHOWN = 300
"""Most characters shown of a value; a prompt may be a page long."""

StatedOptions = dict[str, tuple[str, str]]
"""Option -> its value, and its source for display."""


def stated_options(options: Options, command: str = "") -> str:
    """Return the given options as JSON, as kept with the job. No option holds a key, and addresses with passwords are
    refused."""
    found: StatedOptions = {}
    for name, origin in options.origins.items():
        if name in PLACES:
            found[name] = "", f"{origin} of cortex {command}" if command else origin
        if name in _NOT_KEPT or not hasattr(options, name):
            continue
        value = getattr(options, name)
        text = ", ".join(value) if isinstance(value, list) else str(value).lower() if value is True else str(value)
        found[name] = text, f"{origin} of cortex {command}" if command else origin
    return msgspec.json.encode(found).decode()


def merged(before: str, now: str) -> str:
    """Return the options of a job's start, updated with those of a later run."""
    return msgspec.json.encode({**_decoded(before), **_decoded(now)}).decode()


def stated(text: str, name: str) -> str:
    """Return the value of one option, given the options of a job's start; empty: it was not given."""
    return _decoded(text).get(name, ("", ""))[0]


def _decoded(text: str) -> StatedOptions:
    return msgspec.json.decode(text, type=StatedOptions) if text else {}


def config(job: str, options: Options) -> int:
    """Run ``cortex config`` and return the exit code."""
    folder = named_folder(options)
    k = last_state(folder, job)
    facts = in_force(folder, job, k)
    if options.as_json:
        found = {name: {"value": value, "from": origin} for name, (value, origin) in facts.items()}
        print(msgspec.json.encode({"job": job, "config": found}).decode())
        return COMPLETE
    some = ((name, *pair) for name, pair in facts.items() if pair[0] or pair[1] != DEFAULT)
    table = [(name, clipped(value, SHOWN), origin) for name, value, origin in some]
    print("\n".join(aligned(table)))
    return COMPLETE


def in_force(folder: StateFolder, job: str, k: State) -> StatedOptions:
    """Return the options that a job runs under. A limit has its value in the journal, and the author of its last
    change."""
    places = last_places(folder, job, k.terms)
    facts, changed = _decoded(places.get(CONFIG, "")), _changes(folder, job)
    usual = Limits()
    about = {"program": k.terms.program, "input": places.get("input", ""), "output": places.get("output", "")}
    found: StatedOptions = {name: (value, facts.get(name, ("", ""))[1]) for name, value in about.items()}
    for name in (*RUNNING, "ordered", "no_keep_text", "accept_bad", "bad", *TABLE):
        if name in _NOT_KEPT:
            continue
        value, origin = facts.get(name, ("", DEFAULT))
        if name in LIMITED:
            value = shown_bound(name, k.terms.limits)
            value = "" if value == "none" else value
            origin = changed.get(name, origin)
            if origin == DEFAULT and shown_bound(name, usual) != shown_bound(name, k.terms.limits):
                origin = "as it began"
        elif name == "model":
            value, origin = k.terms.route.model, facts.get(name, ("", "the rows, or as it began"))[1]
        elif name == "cluster":
            value = places.get("cluster", value)
        found[flag_of(name).removeprefix("--")] = value, origin
    return {name: pair for name, pair in found.items() if name not in ABOUT or pair[0]}


def _changes(folder: StateFolder, job: str) -> dict[str, str]:
    """Return limits changed since the job was last opened: option -> author and time."""
    source = folder.journal(job)
    found: dict[str, str] = {}
    limits: Limits | None = None
    try:
        for _, turn in source.turns(source.opened_at()):
            terms = codec.opening(turn)
            limits = terms.limits if terms is not None else limits
            for event in (event for batch in turn.batches for event in batch):
                if not isinstance(event, events.LimitsSet):
                    continue
                before, limits = limits, event.limits
                for name in LIMITED:
                    if before is not None and shown_bound(name, before) != shown_bound(name, limits):
                        found[name] = f"changed by {event.who}, {clock(turn.at_s)}"
    except TextRedacted:
        pass  # author and time were removed with the text
    finally:
        source.close()
    return found


__all__: list[Any] = ["CONFIG", "config", "in_force", "merged", "stated_options"]
