"""Journals that each released minor wrote are read and go on: nothing is paid twice, and the results are those of a run
that was never stopped. A journal of a newer release is refused by every command, in one line.

``tests/journals`` has them, what makes them, and when the next are made.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cortex as package
from actors.channel.journal_maintenance import JournalMaintenance
from actors.journal.journal import StateFolder, replies_in
from actors.simulator.frontends.in_memory import SimulatedModel
from cortex.journal import codec
from tests.journals import make

KEPT = sorted(path for path in make.HERE.glob("[0-9]*/*") if path.is_dir())
NAMES = [f"{path.parent.name}/{path.name}" for path in KEPT]
ALL_CALLS = {"children": 13}
"""Of a job whose children keep accounts of their own."""


@pytest.fixture
def place(cortex: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the length that paths in the journals have: the commands run there."""
    made = Path(tempfile.mkdtemp(prefix="cj-", dir=make.WORK.parent))
    monkeypatch.chdir(made)
    monkeypatch.setattr("actors.programs.loader._known", {})
    monkeypatch.setenv("CORTEX_STATE", "state")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the simulated provider is asked from here on."""
    seen: list[bytes] = []
    call = SimulatedModel.call

    async def counted(self: Any, body: bytes, **more: Any) -> Any:
        seen.append(body)
        return await call(self, body, **more)

    monkeypatch.setattr(SimulatedModel, "call", counted)
    return seen


def _paid(state: Path) -> int:
    """Replies that the journals hold."""
    folder = StateFolder(state)
    total = 0
    for name in folder.jobs():
        source = folder.journal(name)
        total += sum(1 for _ in replies_in(source.turns()))
        source.close()
    return total


def _texts(results: list[Any]) -> dict[str, Any]:
    facts = {each["custom_id"]: each["result"] for each in results}
    assert len(facts) == len(results), "a row has two results"
    return {
        name: result["message"]["content"] if result["type"] == "succeeded" else result["error"]["error"]["type"]
        for name, result in facts.items()
    }


def test_this_release_has_journals_of_its_own_and_they_are_small() -> None:
    assert (make.HERE / make.minor()).is_dir(), "python -m tests.journals.make, see tests/journals/README.md"
    assert {path.name for path in KEPT if path.parent.name == make.minor()} == set(make.CASES)
    for case in KEPT:
        assert sum(path.stat().st_size for path in case.rglob("*") if path.is_file()) < 128 * 1024, case


@pytest.mark.parametrize("case", KEPT, ids=NAMES)
@pytest.mark.parametrize("release", ["", "999.0.0"], ids=["this release", "a later release"])
def test_one_is_read_and_goes_on_to_the_exact_end(
    case: Path, release: str, place: Path, cortex: Any, asked: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    make.moved(case, place)
    if release:
        monkeypatch.setattr(package, "__version__", release)
    name = case.name
    expected = json.loads((case / "expected.json").read_text())
    paid, whole = _paid(place / "state"), ALL_CALLS.get(name, expected["summary"]["paid_calls"])
    for looked in (("status", name), ("inspect", name), ("report", name, "-o", "r.html"), ("jobs",), ("costs",)):
        assert cortex(*looked).code == 0, looked
    assert cortex("results", name).code in (0, 3) or not expected["results"]
    assert asked == [], "whoever only looks pays nothing"
    done = cortex("resume", name, "--sim", "latency_ms=0", "--json")
    assert done.code == expected["exit_code"], done
    assert done.last["answer"] == expected["summary"]["answer"]
    for count in ("rows_succeeded", "rows_failed"):
        assert done.last[count] == expected["summary"][count]
    assert len(asked) == whole - paid, "paid only for what was not yet paid"
    if expected["results"]:
        assert _texts([json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]) == _texts(
            expected["results"]
        )


@pytest.mark.parametrize("case", [path for path in KEPT if path.name == "failed"], ids=str)
def test_failed_rows_of_one_are_asked_again(case: Path, place: Path, cortex: Any, asked: list[bytes]) -> None:
    make.moved(case, place)
    failed = json.loads((case / "expected.json").read_text())["summary"]["rows_failed"]
    assert cortex("results", "failed", "--failed").out.count("\n") == failed > 0
    done = cortex(*make.CASES["failed"].retried, "--json")
    assert (done.code, done.last["rows_failed"], len(asked)) == (0, 0, failed), done
    assert len(_texts([json.loads(line) for line in Path("out.jsonl").read_text().splitlines()])) == 12


REFUSED = [
    ("status", "two"), ("results", "two"), ("results", "two", "--failed"), ("report", "two", "-o", "r.html"),
    ("inspect", "two"), ("inspect", "two", "r1"), ("resume", "two"), ("attach", "two"), ("retry", "two"),
    ("cancel", "two"), ("set", "two", "--max-cost", "3"), ("drain", "two"), ("replay", "two"),
    ("fork", "two", "--at", "1", "--job", "three"), ("diff", "one", "two"), ("diff", "two", "one"),
    ("export", "two", "-o", "e.jsonl"), ("config", "two"), ("answer", "two", "a=1"), ("approve", "two"), ("forget", "two"),
    ("rm", "two"), ("rm", "one", "two"), ("batch", "in.jsonl", "-o", "b.jsonl", "--model", "sim", "--job", "two"),
]  # fmt: skip


def test_a_journal_of_a_newer_release_is_refused_by_every_command_and_hides_no_other(place: Path, cortex: Any) -> None:
    for name, text in make.requests(3).items():
        Path(name).write_text(text)
    for name in ("one", "two"):
        assert cortex("batch", "in.jsonl", "-o", f"{name}.jsonl", "--model", "sim", "--job", name).code == 0
    source = StateFolder("state").journal("two")
    source.set_meta("format", b"%d" % (codec.FORMAT + 1))
    source.close()
    both = f"job two was written by a newer release (journal format {codec.FORMAT + 1}, this one reads {codec.FORMAT})"
    before = (place / "state" / "jobs" / "two.sqlite").read_bytes()
    for command in REFUSED:
        cortex(*command).refused(f"{both}: upgrade cortex-bounded-calls to open it")
    reported = json.loads(cortex("jobs", "--json").out)["jobs"]
    assert {each["job"]: each["outcome"] for each in reported} == {"one": "complete", "two": "unreadable"}
    listed = cortex("jobs")
    assert [line for line in listed.said() if both in line] and "one" in listed.out
    counted = cortex("costs")
    assert counted.code == 0 and [line for line in counted.said() if line.endswith("two")] and "one" in counted.out
    swept = cortex("gc", "--older-than", "0.001s")
    assert swept.code == 0 and [line for line in swept.said() if line.startswith("kept") and "two" in line], swept
    assert cortex("top", "--once").code == 0
    assert (place / "state" / "jobs" / "two.sqlite").read_bytes() == before, "nothing was touched"


def test_what_makes_a_short_job_look_long_finds_what_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = JournalMaintenance.record_turn
    monkeypatch.setattr(JournalMaintenance, "record_turn", before)  # and put back
    exec(make.AS_IF_LONG, {})
    assert JournalMaintenance.record_turn is not before
