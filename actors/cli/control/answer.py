"""``answer`` and ``approve``: what a person says to a job that waits for it."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.cli.control.steer import told_its_cluster, told_its_run, what_now
from actors.cli.jobs.rendering import OVER
from actors.cli.jobs.settings import named_folder
from actors.cli.options.errors import COMPLETE, FAILED, say
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.history.catalog import last_state
from actors.jobs.spec import who
from actors.journal.journal import Folder
from actors.maintenance import offline_edits
from actors.ports.runtime import Peer
from actors.programs.loader import load
from cortex.flows.context import APPROVAL
from cortex.flows.program import Flow, takes
from cortex.state.state import State


def answer(job: str, pairs: list[str], options: Options) -> int:
    """``cortex answer``; the exit code: 0 when the job has taken all of it."""
    folder = named_folder(options)
    return _give(folder, job, dict(map(_named, pairs)))


def approve(job: str, names: list[str], deny: bool, options: Options) -> int:
    """``cortex approve``; without names: what waits for an approval."""
    folder = named_folder(options)
    if names:
        return _give(folder, job, {f"{APPROVAL}{name.removeprefix(APPROVAL)}": not deny for name in names})
    if deny:
        raise CommandError("deny what? name it")
    k = last_state(folder, job)
    waiting = [name for name in ([] if k.outcome in OVER else k.awaited()) if name.startswith(APPROVAL)]
    listed = {name.removeprefix(APPROVAL): _about(k, name) for name in waiting}
    if options.as_json:
        print(msgspec.json.encode({"job": job, "approvals": listed}).decode())
    elif listed:
        print("\n".join(f"{name}  {said}" if said != name else name for name, said in listed.items()))
        say(f"none of it is approved yet: cortex approve {job} NAME, or the same with --deny")
    else:
        say(f"job {job} waits for no approval")
    return COMPLETE


def _about(k: State, name: str) -> str:
    """What whoever waits says of it; a flow says so in its goal's value."""
    values = [k.goals[goal].value for goal in k.expected[name] if goal in k.goals]
    said = [str(value[1]) for value in values if isinstance(value, list) and len(value) > 1]
    return said[0].removeprefix(APPROVAL) if said else ""


def _give(folder: Folder, job: str, given: dict[str, Any]) -> int:
    """Tell the job these answers; the exit code: 0 when it has taken all of them."""
    k = last_state(folder, job)
    if k.outcome in OVER:
        raise CommandError(f"job {job} is {k.outcome} already: it waits for nothing")
    unknown = [name for name in given if name not in (waits := k.awaited())]
    if unknown:
        there = f"it waits for: {', '.join(waits)}" if waits else "it waits for no answer"
        raise CommandError(f"job {job} does not wait for {unknown[0]!r}; {there}")
    blob = msgspec.json.encode(given)

    async def telling(peer: Peer) -> None:
        await peer.ask("told", who(), blob)

    if not told_its_run(folder, job, "answer", answers=given) and not told_its_cluster(folder, job, telling):
        offline_edits.answer(folder, job, who(), given)
    k = last_state(folder, job)
    still = [name for name in given if name in k.awaited()]
    if still:
        wanted = f" for {words}" if (words := _wanted(k, still[0])) else ""
        said = f"job {job} does not take {given[still[0]]!r} for {still[0]!r}: it still waits{wanted}"
        raise CommandError(said, FAILED)
    say(f"{job}: {', '.join(given)} answered by {who()}")
    rest = what_now(folder, job, k)
    if rest:
        say(rest)
    return COMPLETE


def _wanted(k: State, name: str) -> str:
    """What the answer must be, as far as the program says so."""
    try:
        program = load(k.terms.program, k.terms.params_json)
        return takes(program, k, name) if isinstance(program, Flow) else ""
    except Exception:  # an author's code may raise anything
        return ""


def _named(pair: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    if not equals or not name.strip():
        raise CommandError(f"{pair!r}: give it as name=value")
    try:
        return name.strip(), msgspec.json.decode(text)
    except msgspec.DecodeError:
        return name.strip(), text
