"""``answer``: what a person says to a job that waits for it."""

from __future__ import annotations

from typing import Any

import msgspec

from actors import amending
from actors.cli.options import Options
from actors.cli.problems import COMPLETE, FAILED, CommandError, say
from actors.cli.settings import named_folder
from actors.cli.steering import told_its_cluster, told_its_run, what_now
from actors.cli.telling import OVER
from actors.ports import Peer
from actors.records import last_state
from actors.session import who


def answer(job: str, pairs: list[str], options: Options) -> int:
    """``cortex answer``; the exit code: 0 when the job has taken all of it."""
    folder = named_folder(options)
    k = last_state(folder, job)
    given = dict(map(_named, pairs))
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
        amending.answer(folder, job, who(), given)
    k = last_state(folder, job)
    still = [name for name in given if name in k.awaited()]
    if still:
        raise CommandError(f"job {job} does not take {given[still[0]]!r} for {still[0]!r}: it still waits", FAILED)
    say(f"{job}: {', '.join(given)} answered by {who()}")
    rest = what_now(folder, job, k)
    if rest:
        say(rest)
    return COMPLETE


def _named(pair: str) -> tuple[str, Any]:
    name, equals, text = pair.partition("=")
    if not equals or not name.strip():
        raise CommandError(f"{pair!r}: give it as name=value")
    try:
        return name.strip(), msgspec.json.decode(text)
    except msgspec.DecodeError:
        return name.strip(), text
