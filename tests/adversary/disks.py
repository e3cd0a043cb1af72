"""Disks that are full, fail or turn read-only, folders that are gone: the job stops resumable, and loses no row.

A disk that lies about what it wrote needs a device of its own; the simulated disk of ``tests/simulation`` does that.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.adversary.preload import Preload, able
from tests.adversary.verdicts import Attack, Row, Verdict
from tests.adversary.victim import WITHIN_S, Ended, Victim, results_of, wait, write_requests, wrong_rows
from tests.cluster.cluster_processes import Provider
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import MESSAGE, Answer, Asked, http

ROWS = 240
CONCURRENCY = 16
STOPS = (0, 3)
"""Exit codes of a job that is complete, and of one that can be resumed."""


ERRORS = (
    ("fsync", "EIO"), ("write", "EIO"), ("write", "EROFS"), ("write", "ENOSPC"), ("write", "EDQUOT"), ("fsync", "ENOSPC")
)  # fmt: skip
"""What fails in the state folder, and how: a disk that dies, one that is mounted read-only after an error, a full one, a
quota. NFS and delayed allocation tell a full disk at ``fsync`` (close(2), fsync(2))."""


def attacks(short: bool) -> Iterator[Attack | Row]:
    """Yield the attacks."""
    for kb in (100,) if short else (40, 100, 200, 300):
        yield Attack("disks", f"no file above {kb} kB", partial(_bounded, kb))
    if why := able():
        yield Row("disks", "errors of the disk", None, f"not tried: {why}")
    else:
        for call, error in ERRORS[:1] if short else ERRORS:
            yield Attack("disks", f"{call} says {error}", partial(_failing, call, error))
    if not short:
        yield Attack("disks", "the output's folder is read-only", partial(_read_only, "out"))
        yield Attack("disks", "the state folder is removed", _removed)


def _command(output: str) -> tuple[object, ...]:
    return ("batch", "in.jsonl", "-o", output, "--job", "j", "--concurrency", CONCURRENCY)


class _Holding:
    """Provider that answers a quarter of the rows, and the others once it is let: the job is in the middle until then,
    however late whoever watches it is.
    """

    def __init__(self) -> None:
        self.url, self.let = "", threading.Event()
        self._asked, self._answers = 0, Counter[bytes]()

    async def answer(self, asked: Asked) -> Answer:
        found = re.search(rb"Say (r\d+)", asked.body)
        if found is None:
            return http({})
        self._asked += 1
        held = self._asked > ROWS // 4
        while held and not self.let.is_set():  # noqa: ASYNC110 - it is set by another thread
            await asyncio.sleep(0.02)
        self._answers[found[1]] += 1
        return http(MESSAGE)

    def stats(self) -> dict[str, Any]:
        """What is told of a simulated provider, too."""
        twice = sum(count - 1 for count in self._answers.values())
        return {"requests": self._asked, "second_complete_answers_by_user": twice}

    def close(self) -> None:
        """Let go of what is held."""
        self.let.set()


def _tried(
    folder: Path, output: str, first: Callable[[Victim, Any], Ended], paid_max: int, provider: Any, **more: str
) -> Verdict:
    """Let a first run meet the disk, and a second one have a good one. ``more``: variables of both."""
    names = write_requests(folder / "in.jsonl", ROWS)
    try:
        victim = Victim(folder, provider.url, **more)
        met = first(victim, provider)
        ended = victim.run(*_command(output))
        again = provider.stats()["second_complete_answers_by_user"]
    finally:
        provider.close()
    wrong = [*met.faults(), *ended.faults(), *filter(None, [wrong_rows(results_of(folder / output), names)])]
    if met.code not in STOPS:
        wrong.append(f"the first run ended with {met.code}: {met.text[-300:]}")
    if ended.code != 0:
        wrong.append(f"the second run ended with {ended.code}: {ended.text[-300:]}")
    if again > paid_max:
        wrong.append(f"{again} rows paid again, {paid_max} may be")
    return Verdict(not wrong, "; ".join(wrong) or f"exit code {met.code}, then {ROWS} rows once, {again} paid again")


def _bounded(kb: int, folder: Path) -> Verdict:
    """Bound the size of each file, as a full disk does: ``write`` fails with EFBIG (setrlimit(2))."""

    def before() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (kb * 1_000, kb * 1_000))

    def first(victim: Victim, provider: Provider) -> Ended:
        return victim.run(*_command("out.jsonl"), before=before)

    return _tried(folder, "out.jsonl", first, CONCURRENCY, Provider(latency_ms=60.0, seed=1))


def _failing(call: str, error: str, folder: Path) -> Verdict:
    """Let the disk of the state fail once a quarter of the rows was asked."""
    preload, told = Preload(folder), []

    def first(victim: Victim, provider: _Holding) -> Ended:
        started = victim.start(*_command("out.jsonl"))
        wait(lambda: provider.stats()["requests"] > ROWS // 4)
        preload.tell(**{f"{'sync' if call == 'fsync' else call}_error": error})
        provider.let.set()
        ended = victim.ended(started, WITHIN_S)
        told.append(preload.met)
        full, said = error in ("ENOSPC", "EDQUOT"), ended.text.rpartition("j: ")[2]
        preload.tell()
        if ended.code == 0 or not told[0]:
            return ended._replace(code=-1, text=f"the error was {'met' if told[0] else 'not met'}: {said}")
        if (" is full" in said or "quota" in said) != full or "nothing was sent or paid" in ended.text:
            return ended._replace(code=-1, text=f"it said the wrong thing: {said}")
        return ended

    holding = _Holding()
    with served(holding.answer) as server:
        holding.url = server.url
        return _tried(folder, "out.jsonl", first, CONCURRENCY, holding, **preload.environment)


def _read_only(name: str, folder: Path) -> Verdict:
    """Take away the right to write in the folder of the output while the job runs (root may write all the same)."""
    (folder / name).mkdir()
    output = f"{name}/out.jsonl"

    def first(victim: Victim, provider: Provider) -> Ended:
        started = victim.start(*_command(output))
        wait(lambda: provider.stats()["requests"] > ROWS // 4)
        os.chmod(folder / name, 0o500)
        try:
            return victim.ended(started, WITHIN_S)
        finally:
            os.chmod(folder / name, 0o700)

    return _tried(folder, output, first, CONCURRENCY, Provider(latency_ms=60.0, seed=1))


def _removed(folder: Path) -> Verdict:
    """Remove the state under a running job: it stops, and what it had paid until then is paid again at most once."""

    def first(victim: Victim, provider: Provider) -> Ended:
        started = victim.start(*_command("out.jsonl"))
        wait(lambda: provider.stats()["requests"] > ROWS // 4)
        shutil.rmtree(folder / "state")
        seen = provider.stats()["requests"]
        ended = victim.ended(started, WITHIN_S)
        more = provider.stats()["requests"] - seen
        (folder / "out.jsonl").unlink(missing_ok=True)  # its job is gone: the next one is another
        if more > ROWS // 2:
            return ended._replace(code=-1, text=f"it went on paying for {more} rows without a state folder")
        return ended

    # the names are looked at each second, in which as many rows are asked as the provider answers
    return _tried(folder, "out.jsonl", first, ROWS, Provider(latency_ms=500.0, seed=1))
