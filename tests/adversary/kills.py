"""``kill -9`` of a batch at random moments, again and again, over each form of input and output."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.adversary.verdicts import Attack, Verdict
from tests.adversary.victim import Victim, kill, results_of, write_requests, wrong_rows
from tests.cluster.cluster_processes import Provider

ROWS = 240
CONCURRENCY = 16
KILLS = 3
FAULTS = {"overloaded": 0.02, "server_error": 0.015, "reset": 0.005}
FORMS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "lines": ("in.jsonl", "out.jsonl", ()),
    "gzip": ("in.jsonl", "out.jsonl.gz", ()),
    "ordered": ("in.jsonl", "out.jsonl", ("--ordered",)),
    "shards": ("in.jsonl", "out.jsonl", ("--shards", "3")),
    "no text kept": ("in.jsonl", "out.jsonl", ("--no-keep-text",)),
    "table": ("in.csv", "out.csv", ("--prompt", "{{text}}", "--id", "id", "--model", "m")),
}  # fmt: skip
ROUNDS = {"lines": 12, "gzip": 6, "ordered": 6, "shards": 6, "no text kept": 5, "table": 8}
"""43 rounds."""


def attacks(short: bool) -> Iterator[Attack]:
    """Yield the rounds: one of each form in the short form."""
    for form, rounds in ROUNDS.items():
        for number in range(1 if short else rounds):
            yield Attack("kills", f"{form}, round {number + 1}", partial(_round, form, number))


def _round(form: str, number: int, folder: Path) -> Verdict:
    given, output, options = FORMS[form]
    chance = random.Random(f"{form}/{number}")
    names = write_requests(folder / given, ROWS)
    provider = Provider(faults=FAULTS, latency_ms=120.0, seed=number)
    words = ("batch", given, "-o", output, "--job", "j", "--concurrency", CONCURRENCY, *options)
    try:
        victim, kills = Victim(folder, provider.url), 0
        for _ in range(KILLS):
            before, wanted = provider.stats()["requests"], chance.randrange(1, ROWS // 3)
            started, until_s = victim.start(*words), time.monotonic() + 60
            while started.poll() is None and time.monotonic() < until_s:
                if provider.stats()["requests"] - before >= wanted:
                    break
                time.sleep(0.02)
            kills += started.poll() is None
            kill(started)
            victim.ended(started, 10)
        ended = victim.run(*words)
        stats = provider.stats()
    finally:
        provider.close()
    wrong = [*ended.faults(), *victim.keys_in_files()]
    wrong += filter(None, [wrong_rows(results_of(folder / output), names)])
    if ended.code != 0:
        wrong.append(f"exit code {ended.code}: {ended.text[-200:]}")
    again = stats["second_complete_answers_by_user"] if given.endswith(".jsonl") else 0
    if again > CONCURRENCY * kills:
        wrong.append(f"{again} rows paid again, {CONCURRENCY * kills} may be")
    return Verdict(not wrong, "; ".join(wrong) or f"{kills} kills, {ROWS} rows once, {again} paid again")
