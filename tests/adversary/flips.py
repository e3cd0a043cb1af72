"""Bits that flip, and sectors that are zeroed, in the files of a state folder: journal, index of replies, budgets.

Each file is damaged as a disk does it, under nobody's hands, and then read as a resume, ``cortex results`` and the next
job read it. What is read is what was written, or one line says what is damaged.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from actors.common.errors import UserError
from actors.history.catalog import replayed
from actors.history.result_history import lines
from actors.journal.journal import Damaged, StateFolder
from actors.limits.budgets import FolderBudgets
from actors.programs import loader
from cortex.journal import codec
from cortex.state.program import Program
from cortex.values.limits import JobTerms, Limits
from policies.limits.slices import Budget
from tests.adversary.verdicts import Attack, Verdict
from tests.adversary.victim import Victim, kill, results_of, wait, write_requests, wrong_rows
from tests.edge.support.cloud_server import served
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, rows
from tests.edge.support.scripted_http_server import MESSAGE, Asked, http

FLIPS, FLIPS_SHORT = 1_000, 40
"""Flips in a journal; a tenth as many in the index and in the budgets."""
RUNS, RUNS_SHORT = 12, 1
"""Flips that commands meet."""
ROWS = 120
SECTOR = 512


def attacks(short: bool) -> Iterator[Attack]:
    """Yield the attacks."""
    flips = FLIPS_SHORT if short else FLIPS
    yield Attack("flips", "journal", partial(_trials, _journal, flips))
    yield Attack("flips", "index of replies", partial(_trials, _index, flips // 10))
    yield Attack("flips", "budgets", partial(_trials, _budgets, flips // 10 if short else flips))
    for mode in ("flip", "sector"):
        yield Attack("flips", f"commands, {mode}", partial(_commands, mode, RUNS_SHORT if short else RUNS))


def damage(path: Path, chance: random.Random, mode: str) -> None:
    """Flip one bit of a file, or zero one sector."""
    blob = bytearray(path.read_bytes())
    at = chance.randrange(len(blob))
    if mode == "sector":
        at -= at % SECTOR
        blob[at : at + SECTOR] = bytes(len(blob[at : at + SECTOR]))
    else:
        blob[at] ^= 1 << chance.randrange(8)
    path.write_bytes(blob)


# -- in this process ---------------------------------------------------------------------------------------------------

Trial = Callable[[Path, Path], "tuple[Path, Callable[[], Any]]"]
"""From a folder for what is whole and one for a copy, to the file that is damaged and what reads it."""
ASKED_AGAIN: Final = "asked again"


def _trials(kind: Callable[[Path, Path], tuple[Path, Callable[[], Any]]], count: int, folder: Path) -> Verdict:
    whole, to = folder / "whole", folder / "copy"
    path, read = kind(whole, to)
    shutil.copytree(whole, to)
    right, chance, found = read(), random.Random(7), Counter[str]()
    examples: list[str] = []
    for number in range(count):
        shutil.rmtree(to)
        shutil.copytree(whole, to)
        damage(path, chance, "sector" if number % 4 == 3 else "flip")
        try:
            seen = read()
            word = "as it was" if seen == right else seen if seen == ASKED_AGAIN else "WRONG"
        except Damaged as error:
            word = "told" if "damaged" in str(error) and "\n" not in str(error) else "BADLY TOLD"
        except UserError as error:
            word = "refused" if "\n" not in str(error) else "BADLY TOLD"
        except Exception as error:
            word = f"FAULT {type(error).__name__}"
            examples.append(str(error)[:80])
        found[word] += 1
    wrong = [word for word in found if word.isupper() or word.startswith("FAULT")]
    return Verdict(not wrong, f"{count} flips: {', '.join(f'{n} {word}' for word, n in found.most_common())} {examples[:2]}")


def _load(terms: JobTerms) -> Program:
    return loader.load(terms.program, terms.params_json)


def _closed(state: Path) -> None:
    """Write all of each database into its one file, as its last user does."""
    for path in state.rglob("*.sqlite"):
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _journal(whole: Path, to: Path) -> tuple[Path, Callable[[], Any]]:
    """A job that was killed half-way, with snapshots: read as a resume and ``cortex results`` do."""

    async def half() -> None:
        limits = Limits(concurrency=5, window_rows=20, snapshot_events=60)
        model = FunctionModel()
        run = Run(whole, model, source=ListSource(rows(ROWS)), limits=limits)
        await run.crash_after(lambda: len(model.complete) > ROWS * 2 // 3)

    asyncio.run(half())
    _closed(whole)

    def read() -> tuple[bytes, list[object]]:
        with closing(StateFolder(to).journal("j")) as source:
            source.take_epoch(b"{}")
            k = replayed(source, _load)
            found = list(takewhile(lambda each: each is not None, lines(source, _load)))
            return codec.encode_state(k) if k is not None else b"", found

    return to / "jobs" / "j.sqlite", read


def _index(whole: Path, to: Path) -> tuple[Path, Callable[[], Any]]:
    """A job that ended, and one more that asks the same questions: its answers are found, or asked again."""

    def job(state: Path, name: str) -> tuple[dict[str, Any], int]:
        async def run() -> tuple[dict[str, Any], int]:
            model = FunctionModel()
            done = await Run(state, model, source=ListSource(rows(ROWS)), job=name).to_end()
            return done.sink.results(), len(model.complete)

        return asyncio.run(run())

    right, _ = job(whole, "j")
    _closed(whole)

    def read() -> Any:
        found, asked = job(to, "other")
        return (ASKED_AGAIN if asked else right) if found == right else found

    return to / "replies.sqlite", read


def _budgets(whole: Path, to: Path) -> tuple[Path, Callable[[], Any]]:
    whole.mkdir()
    for number in range(20):
        FolderBudgets(StateFolder(whole)).put(Budget("team", f"n{number}", "day", 10**9 + number, "ann"))
    _closed(whole)
    return to / "budgets.sqlite", lambda: FolderBudgets(StateFolder(to)).read()


# -- commands ----------------------------------------------------------------------------------------------------------


def _answer(asked: Asked) -> Any:
    found = re.search(rb"Say (r\d+)", asked.body)
    if found is None:
        return http({})
    return http({**MESSAGE, "content": [{"type": "text", "text": f"answer of {found[1].decode()}."}]})


def _commands(mode: str, runs: int, folder: Path) -> Verdict:
    """Kill a batch half-way, damage its journal, and give ``verify`` and the same command."""
    names = write_requests(folder / "in.jsonl", ROWS)
    words = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "j", "--concurrency", 8)
    seen, wrong, chance = Counter[str](), list[str](), random.Random(mode)
    with served(_answer) as server:
        victim = Victim(folder, server.url)
        started = victim.start(*words)
        wait(lambda: len(server.asked) > ROWS // 2)
        kill(started)
        victim.ended(started, 10)
        _closed(folder / "state")
        kept = {name: folder / f"kept-{name}" for name in ("state", "out.jsonl")}
        shutil.copytree(folder / "state", kept["state"])
        shutil.copy(folder / "out.jsonl", kept["out.jsonl"])
        for _ in range(runs):
            shutil.rmtree(folder / "state")
            shutil.copytree(kept["state"], folder / "state")
            shutil.copy(kept["out.jsonl"], folder / "out.jsonl")
            damage(folder / "state" / "jobs" / "j.sqlite", chance, mode)
            verified, ended = victim.run("verify", "j"), victim.run(*words)
            wrong += [*verified.faults(), *ended.faults()]
            wrong += _wrong(results_of(folder / "out.jsonl"), names, whole=ended.code == 0)
            seen["complete" if ended.code == 0 else "told" if "damaged" in ended.text else "refused"] += 1
            if verified.code == 0 and ended.code != 0:
                wrong.append(f"verify found nothing, and resume said: {ended.text[-200:]}")
    told = f"{runs} times damaged: {', '.join(f'{n} {word}' for word, n in seen.most_common())}"
    return Verdict(not wrong, "; ".join(wrong) or told)


def _wrong(found: dict[str, list[Any]], names: list[str], whole: bool) -> list[str]:
    """Rows that are wrong, and rows with another row's answer."""
    other = [name for name, results in found.items() if f"answer of {name}." not in json.dumps(results)]
    return [*filter(None, [wrong_rows(found, names, whole=whole)]), *[f"{name} has another answer" for name in other]]
