"""A retry that ends before all rows were asked: each row keeps its line and its count until a better outcome comes."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from actors.history.annotated_turns import readings
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.report.aggregate import fold
from cortex.state.state import State
from tests.cli.cli_runner import started, until
from tests.cli.table_files import table

COUNT = 12
FIRST, SECOND = 2, 3
"""Bounds on reply tokens: both cut every reply."""
SIM = ("--model", "sim", "--sim", "error=0", "--sim", "latency_ms=1")
RETRY = ("retry", "mine", "--kind", "cut", "--max-output-tokens", SECOND, "--concurrency", 1)


def _state() -> State:
    return last_state(StateFolder(os.environ["CORTEX_STATE"]), "mine")


def _records(path: str) -> dict[str, dict[str, str]]:
    with Path(path).open(newline="") as file:
        found = list(csv.DictReader(file))
    assert len({row["ticket_id"] for row in found}) == len(found), "a row stands twice"
    return {row["ticket_id"]: row for row in found}


def _cut(cortex: Any, *more: str) -> dict[str, dict[str, str]]:
    """Run a job whose rows are all cut, with the fragments in its table, and return the table."""
    table(Path("t.csv"), COUNT)
    words = ("--prompt", "Tell of {{text}}", "--id", "ticket_id", *SIM, "--max-output-tokens", FIRST)
    assert cortex("batch", "t.csv", *words, "-o", "o.csv", "--job", "mine", *more).code == 1
    found = _records("o.csv")
    assert len(found) == COUNT and all(row["answer"] for row in found.values())
    return found


def _standing(cortex: Any) -> dict[str, Any]:
    cortex("status", "mine", "--json")
    return dict(cortex("status", "mine", "--json").last)


ENDS = {
    "halted": ("--max-failed", 3),
    "refused": ("--sim", "error=0", "--sim", "refusal=1", "--max-failed", 3),
}


@pytest.mark.parametrize("more", [(), ("--ordered",)])
@pytest.mark.parametrize("how", [*ENDS, "capped"])
def test_a_paid_fragment_stays_until_the_retry_has_a_better_one(cortex: Any, how: str, more: tuple[str, ...]) -> None:
    before = _cut(cortex, *more)
    spent = _state().ledger.known_tokens
    done = cortex(*RETRY, *ENDS.get(how, ("--max-job-tokens", 2 * spent)), "--json")
    assert done.code == 3, done
    assert (done.last["rows_succeeded"], done.last["rows_failed"]) == (0, COUNT)
    now = _records("o.csv")
    assert now.keys() == before.keys() and all(row["error"].startswith("cut: ") for row in now.values())
    replaced = [key for key, row in now.items() if row != before[key]]
    assert all(len(now[key]["answer"]) > len(before[key]["answer"]) for key in replaced)
    assert len(replaced) < COUNT and bool(replaced) == (how != "refused")
    if more:
        assert list(now) == list(before)
    assert _standing(cortex)["rows_failed_by_kind"] == {"cut": COUNT}
    shown = [json.loads(line) for line in cortex("inspect", "mine", "--failed", "--json").out.splitlines()]
    assert sorted(each["row"] for each in shown) == sorted(before)
    cortex("results", "mine", "-o", "copy.csv")
    assert Path("copy.csv").read_bytes() == Path("o.csv").read_bytes()
    folder = StateFolder(os.environ["CORTEX_STATE"])
    assert fold(readings(folder, "mine")).goals_failed == COUNT
    well = ("--sim", "error=0", "--sim", "refusal=0", "--max-failed", 0.9, "--max-job-tokens", 90_000)
    assert cortex("retry", "mine", "--max-output-tokens", 500, *well).code == 0
    whole = _records("o.csv")
    assert whole.keys() == before.keys() and not any(row["error"] for row in whole.values())


@pytest.mark.parametrize("more", [(), ("--ordered",)])
def test_a_cancelled_retry_keeps_all_that_was_known(cortex: Any, more: tuple[str, ...]) -> None:
    before = _cut(cortex, *more)
    assert cortex(*RETRY, *ENDS["halted"]).code == 3
    halted = _records("o.csv")
    assert cortex("cancel", "mine").code == 0
    facts = _standing(cortex)
    assert (facts["outcome"], facts["rows_failed_by_kind"]) == ("cancelled", {"cut": COUNT})
    cortex("results", "mine", "-o", "copy.csv")
    assert _records("copy.csv") == halted and halted.keys() == before.keys()


def test_a_killed_retry_lists_and_counts_what_was_known(cortex: Any) -> None:
    before = _cut(cortex)
    slow = ("--sim", "error=0", "--sim", "latency_ms=1000", "--sim", "latency_spread=0")
    with started(*RETRY, *slow) as child:
        until(lambda: _state().edition == 1 and len(_state().withdrawn) < COUNT)
        child.kill()
        child.wait()
    facts = _standing(cortex)
    assert (facts["outcome"], facts["rows_failed_by_kind"]) == ("interrupted", {"cut": COUNT})
    cortex("results", "mine", "-o", "copy.csv")
    assert _records("copy.csv").keys() == before.keys()
    assert cortex("resume", "mine", "--sim", "error=0", "--max-failed", 2).code == 3
    assert _records("o.csv").keys() == before.keys()


def test_to_standard_output_go_new_results_alone(cortex: Any) -> None:
    table(Path("t.csv"), COUNT)
    words = ("--prompt", "Tell of {{text}}", "--id", "ticket_id", *SIM, "--max-output-tokens", FIRST)
    first = cortex("batch", "t.csv", *words, "-o", "-", "--job", "mine")
    assert len(first.out.splitlines()) == COUNT
    done = cortex(*RETRY, *ENDS["halted"])
    assert done.code == 3
    fresh = [json.loads(line) for line in done.out.splitlines()]
    assert 0 < len(fresh) < COUNT and _standing(cortex)["rows_failed"] == COUNT
    rest = cortex("resume", "mine", "--max-failed", 0.9)
    assert len(rest.out.splitlines()) == COUNT - len(fresh)

