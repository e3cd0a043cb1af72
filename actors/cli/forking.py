"""``fork`` and ``inspect``: a job's turns, and another job that goes on from one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from actors.cli.beginning import check_output, sink_of
from actors.cli.options import Options
from actors.cli.problems import COMPLETE, CommandError, say
from actors.cli.settings import folder_of, named_folder
from actors.cli.standings import standing_of
from actors.cli.telling import headline
from actors.forking import Fork, fork
from actors.store import Journal
from cortex import events
from cortex.dryrun import clipped
from policies.failure import Failure

_QUIET = frozenset({"granted", "written", "ticked"})
_SAID_CHARACTERS = 60
TURNS_SHOWN = 40


def fork_job(job: str, at: int, program: str, output: str, options: Options) -> int:
    """``cortex fork``; the exit code."""
    name = options.job or f"{job}-{at}"
    if "~" in name or "~" in job:
        raise CommandError(f"job name {name!r}: '~' stands in the names of child jobs alone")
    folder = folder_of(options)
    sink = sink_of(output, "", options.overwrite)
    if sink is not None:
        check_output(sink, output, options.overwrite)  # resuming cuts back what stands there
    k = fork(folder, Fork(job=job, at=at, name=name, output=output, program=program))
    standing = standing_of(folder, name, k)
    if options.as_json:
        print(standing.as_json())
        return COMPLETE
    say(f"{headline(standing)}; what it has and has cost is that of {job} up to turn {at:,}")
    say(f"to go on: {standing.resume}" if standing.resume else f"{job} had ended there: there is nothing to go on with")
    return COMPLETE


def inspect(job: str, first: int, count: int, options: Options) -> int:
    """``cortex inspect``; the exit code."""
    source = Journal(named_folder(options).journal_path(job))
    try:
        if options.as_json:
            for line in _turns(source, max(0, first - 1)):
                print(msgspec.json.encode(line).decode())
            return COMPLETE
        shown = [line for line in _turns(source, max(0, first - 1)) if not _QUIET.issuperset(line["events"])]
        some = shown[:count] if first else shown[-count:]
        for line in some:
            at = datetime.fromtimestamp(line["at_s"], UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
            print(f"{line['turn']:>7}  {at}  {'; '.join(line['said'])}")
        left = source.seq - len(some)
        if left:
            say(f"{job} has {source.seq:,} turns; --from N shows others, --json all; where nothing but leave, time or "
                "output came is left out")
        return COMPLETE
    finally:
        source.close()


def _turns(source: Journal, after: int) -> Iterator[dict[str, Any]]:
    for seq, turn in source.turns(after):
        flat = [event for batch in turn.batches for event in batch]
        counts = Counter(map(_tag, flat))
        yield {"turn": seq, "at_s": turn.at_s, "events": dict(counts), "said": list(_said(flat))}


def _tag(event: events.Event) -> str:
    return str(type(event).__struct_config__.tag)


def _said(flat: list[events.Event]) -> Iterator[str]:
    """What happened in a turn: each event by itself where it is the only one of its kind, else their number."""
    for type_ in dict.fromkeys(map(type, flat)):
        some = [event for event in flat if type(event) is type_]
        yield _one(some[0]) if len(some) == 1 else f"{len(some):,} {_NAMES.get(type_, _tag(some[0]) + ' events')}"


_NAMES: dict[type, str] = {
    events.Answered: "calls answered", events.Recalled: "calls answered from memory", events.Broke: "attempts failed",
    events.Made: "goals made", events.Observed: "tool runs over", events.Returned: "child jobs ended",
    events.Fed: "windows of rows", events.Granted: "grants", events.Told: "answers from outside",
}  # fmt: skip


def _one(event: events.Event) -> str:
    match event:
        case events.Answered() | events.Recalled():
            text = f": {clipped(event.reply.text, _SAID_CHARACTERS)!r}" if event.reply is not None else ""
            remembered = " from memory" if isinstance(event, events.Recalled) else ""
            return f"goal {event.goal} answered{remembered}{text}"
        case events.Broke():
            return f"goal {event.goal} failed an attempt: {_failed(event.failure)}"
        case events.Made(value=[place, preview, *_]):
            return f"goal {event.goal} made: {event.kind} {clipped(str(preview), _SAID_CHARACTERS)!r} at {place}"
        case events.Made():
            return f"goal {event.goal} made: {event.kind}"
        case events.Observed():
            came = _failed(event.failure) if event.failure else clipped(repr(event.value), _SAID_CHARACTERS)
            return f"goal {event.goal}: its tool run is over: {came}"
        case events.Returned():
            came = _failed(event.failure) if event.failure else clipped(repr(event.answer), _SAID_CHARACTERS)
            return f"goal {event.goal}: its child job ended: {came}"
        case events.Fed():
            return f"{len(event.rows):,} rows read" + (", the last ones" if event.ended else "")
        case events.Told():
            return f"{event.who} answered {event.name}: {clipped(repr(event.value), _SAID_CHARACTERS)}"
        case events.Stopped():
            return f"{event.how} by {event.who}"
        case events.LimitsSet():
            return f"bounds set by {event.who or 'a new run'}"
        case events.Opened():
            return "the job begins" + (" anew" if event.carried is not None else "")
        case _:
            return _SIMPLE.get(type(event), _tag(event))


_SIMPLE: dict[type, str] = {
    events.Rejoined: "another run goes on with it", events.Resumed: "resumed", events.Granted: "leave to ask",
    events.Written: "output written", events.Ticked: "time passed",
}  # fmt: skip


def _failed(failure: Failure) -> str:
    return clipped(f"{failure.kind}: {failure.message}", 2 * _SAID_CHARACTERS)
