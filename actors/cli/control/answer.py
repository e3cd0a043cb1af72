"""``answer`` and ``approve``: answers of a person to a job that waits for them."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.cli.control.steer import send_to_cluster, send_to_run, what_now
from actors.cli.jobs.rendering import OVER
from actors.cli.jobs.settings import named_folder
from actors.cli.options.errors import COMPLETE, FAILED, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.history.catalog import last_state
from actors.jobs.spec import who
from actors.journal.journal import StateFolder
from actors.journal.state_folder import advised
from actors.maintenance import offline_edits
from actors.ports.runtime import Peer
from actors.programs.loader import load
from cortex.flows.context import APPROVAL
from cortex.flows.program import Flow, takes
from cortex.state.state import State
from cortex.values.bounds.json_depth import deep_words, too_deep
from cortex.values.display import one_line


def answer(job: str, pairs: list[str], options: Options) -> int:
    """Run ``cortex answer`` and return the exit code: 0 if the job has taken every answer."""
    folder = named_folder(options)
    return _give(folder, job, dict(map(_named, pairs)))


def approve(job: str, names: list[str], deny: bool, options: Options) -> int:
    """Run ``cortex approve`` and return the exit code. Without names, list the approvals that the job waits for."""
    folder = named_folder(options)
    if names:
        return _give(folder, job, {f"{APPROVAL}{name.removeprefix(APPROVAL)}": not deny for name in names})
    if deny:
        raise CommandError("--deny needs the names of approvals: give a GOAL")
    k = last_state(folder, job)
    waiting = [name for name in ([] if k.outcome in OVER else k.awaited()) if name.startswith(APPROVAL)]
    listed = {name.removeprefix(APPROVAL): _about(k, name) for name in waiting}
    if options.as_json:
        print(msgspec.json.encode({"job": job, "approvals": listed}).decode())
    elif listed:  # uncut: a person decides by the last words too
        print("\n".join(one_line(f"{name}  {text}" if text != name else name) for name, text in listed.items()))
        print_error(f"to approve: {advised(folder, 'approve', job, 'NAME')}, or with --deny")
    else:
        print_error(f"job {job} waits for no approval")
    return COMPLETE


def _about(k: State, name: str) -> str:
    """Return the description that waiting goals give of an approval; a flow stores it in the goal's value."""
    values = [k.goals[goal].value for goal in k.expected[name] if goal in k.goals]
    lines = [str(value[1]) for value in values if isinstance(value, list) and len(value) > 1]
    return lines[0].removeprefix(APPROVAL) if lines else ""


def _give(folder: StateFolder, job: str, given: dict[str, Any]) -> int:
    """Send answers to the job and return the exit code: 0 if the job has taken all of them."""
    k = last_state(folder, job)
    if k.outcome in OVER:
        raise CommandError(f"job {job} is already {k.outcome}: no answer is needed")
    unknown = [name for name in given if name not in (waits := k.awaited())]
    if unknown:
        there = f"it waits for: {', '.join(waits)}" if waits else "it waits for no answer"
        raise CommandError(f"job {job} does not wait for {unknown[0]!r}; {there}")
    blob = msgspec.json.encode(given)

    async def send(peer: Peer) -> None:
        await peer.ask("give_answers", who(), blob)

    if not send_to_run(folder, job, "answer", answers=given) and not send_to_cluster(folder, job, send):
        offline_edits.answer(folder, job, who(), given)
    k = last_state(folder, job)
    still = [name for name in given if name in k.awaited()]
    if still:
        wanted = f" for {words}" if (words := _wanted(k, still[0])) else ""
        text = f"job {job} does not take {given[still[0]]!r} for {still[0]!r}: it still waits{wanted}"
        raise CommandError(text, FAILED)
    print_error(f"{job}: {', '.join(given)} answered by {who()}")
    rest = what_now(folder, job, k)
    if rest:
        print_error(rest)
    return COMPLETE


def _wanted(k: State, name: str) -> str:
    """Return the expected form of an answer, as far as the program declares it."""
    try:
        program = load(k.terms.program, k.terms.params_json)
        return takes(program, k, name) if isinstance(program, Flow) else ""
    except Exception:  # code of a program's author may raise anything
        return ""


def _named(pair: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    if not equals or not name.strip():
        raise CommandError(f"{pair!r} has no '=': give name=value")
    if too_deep(text):
        raise CommandError(f"the answer to {name.strip()} is {deep_words()}: flatten it")
    try:
        return name.strip(), msgspec.json.decode(text)
    except msgspec.DecodeError:
        return name.strip(), text
