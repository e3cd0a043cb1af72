"""``run``: programs by place, their parameters and inputs, their answers and results."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

LABEL = '''
import cortex

class Label(cortex.Program):
    texts: list[str]
    note: str = "plain"
    count: int = 1

    def begin(self, k):
        for text in self.texts:
            yield cortex.Goal("label", text)

    def select(self, k):
        for goal in k.open("label"):
            text = f"Answer with one of: bug, praise.\\n\\n{goal.value}"
            yield cortex.Ask(goal, cortex.Prompt("plain", (cortex.Part(cortex.Role.GOAL, text),)))

    def absorb(self, k, goal, reply):
        yield cortex.Resolve(goal, cortex.as_choice(reply, ("bug", "praise")))
'''

ROWS = '''
import cortex

class Rows(cortex.Program):
    def select(self, k):
        for goal in k.open("row"):
            part = cortex.Part(cortex.Role.GOAL, "Answer with one of: bug, praise.\\n\\n" + goal.value.decode())
            yield cortex.Ask(goal, cortex.Prompt("row", (part,)))

    def absorb(self, k, goal, reply):
        yield cortex.Resolve(goal, [goal.value.decode(), reply.text])
'''

TEXTS = 'texts=["I love it, praise", "It has a bug"]'
SIM = ("--model", "sim", "--sim", "error=0")


@pytest.mark.parametrize("place", ["label.py:Label", "label.py", "label:Label"])
def test_a_program_of_ones_own(cortex, place, monkeypatch):
    Path("label.py").write_text(LABEL)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "label", raising=False)
    done = cortex("run", place, "-p", TEXTS, *SIM, "--json", "--job", f"own-{place.replace(':', '-')}")
    assert (done.code, done.last["answer"], done.last["rows"]) == (0, ["praise", "bug"], 2)
    monkeypatch.delitem(sys.modules, "label", raising=False)


def test_its_answer_goes_to_people_or_its_results_to_a_file(cortex):
    Path("label.py").write_text(LABEL)
    command = ("run", "label.py", "-p", TEXTS, "-p", "note=a, b", "-p", "count=3", *SIM)
    assert json.loads(cortex(*command).out) == ["praise", "bug"]
    assert cortex(*command, "-o", "out.jsonl").out == ""
    assert Path("out.jsonl").read_text() == '"praise"\n"bug"\n'
    again = cortex(*command)
    assert "already complete" in again.said()[0]
    assert json.loads(again.out) == ["praise", "bug"]


def test_parameters_that_do_not_fit(cortex):
    Path("label.py").write_text(LABEL)
    cortex("run", "label.py", "-p", "texts=5", *SIM).refused("texts", "expected `array`, got `int`", """-p texts='["a", "b"]'""")
    cortex("run", "label.py", *SIM).refused("Label needs texts: give -p texts=...")


def test_lines_of_a_file_as_rows(cortex):
    Path("rows.py").write_text(ROWS)
    Path("lines.txt").write_text("I love it, praise\n\nIt has a bug\n")
    done = cortex("run", "rows.py", "lines.txt", "-o", "out.jsonl", *SIM, "--json")
    assert (done.code, done.last["rows"]) == (0, 2)
    found = {line["row"]: line["answer"] for line in map(json.loads, Path("out.jsonl").read_text().splitlines())}
    assert found == {1: ["I love it, praise", "praise"], 3: ["It has a bug", "bug"]}  # a blank line is no row
    Path("lines.txt").write_text("another\n")
    cortex("run", "rows.py", "lines.txt", "-o", "out.jsonl", *SIM).refused("lines.txt is not what job")
    cortex("run", "rows.py", "lines.txt", "rows.py", *SIM).refused("one file")


def test_a_row_that_fails_has_a_line_too_and_each_row_has_one(cortex, monkeypatch):
    Path("rows.py").write_text(ROWS.replace("reply.text]", "reply.text] if b'worse' not in goal.value else 1 / 0"))
    Path("lines.txt").write_text("praise\nworse\n" + "bug\n" * 40 + f"{'much too long ' * 2_000}\n")
    command = ("run", "rows.py", "lines.txt", "-o", "out.jsonl", *SIM, "--prompt-tokens-max", 1_000, "--json")
    done = cortex(*command)
    assert (done.code, done.last["rows_succeeded"], done.last["rows_failed"]) == (1, 41, 2)
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert sorted(line["row"] for line in lines) == list(range(1, 44))
    failed = {line["row"]: line["failed"] for line in lines if "failed" in line}
    assert {row: why["kind"] for row, why in failed.items()} == {2: "faulty", 43: "too_large"}
    assert "division by zero" in failed[2]["message"]
    assert sorted(map(json.dumps, lines)) == sorted(map(json.dumps, map(json.loads, cortex("results", done.last["job"]).out.splitlines())))


def _notes() -> None:
    Path("notes/more").mkdir(parents=True)
    Path("notes/one.md").write_text("The deploy failed because the disk was full.")
    Path("notes/more/two.txt").write_text("Lunch was good.")
    Path("notes/three.png").write_bytes(b"\x89PNG")
    Path("notes/.hidden.md").write_text("unseen")
    Path("notes/blank.md").write_text(" \n")
    text = "The deploy failed because the disk was full."
    lines = [{"name": "one.md", "text": text}, {"id": 2, "body": "Lunch."}, "x"]
    Path("notes.jsonl").write_text("\n".join(map(json.dumps, lines)))


def test_notes_from_a_folder(cortex):
    _notes()
    done = cortex("run", "notes", "notes", "-p", "question=Why did the deploy fail?", *SIM)
    assert done.code == 0
    assert "disk" in done.out
    assert "notes: 1 of 4 files skipped" in done.err
    again = cortex("run", "notes", "notes", "-p", "question=Why did the deploy fail?", *SIM, "--json")
    assert again.last["answer"]["counts"]["notes"] == 2


@pytest.mark.parametrize("inputs", [["notes.jsonl"], ["notes/one.md", "notes/more/two.txt"], ["-"]])
def test_notes_from_elsewhere(cortex, inputs, monkeypatch):
    _notes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'"The disk was full."')))
    done = cortex("run", "notes", *inputs, "-p", "question=Why did the deploy fail?", *SIM, "-o", "out.jsonl")
    assert done.code == 0
    assert "disk" in json.loads(Path("out.jsonl").read_text())["text"]


def test_a_program_that_fails_is_exit_code_one(cortex):
    Path("label.py").write_text(LABEL)
    done = cortex("run", "label.py", "-p", 'texts=["a", "b"]', *SIM, "--prompt-tokens-max", 5, "--json")
    assert (done.code, done.last["rows_failed"]) == (1, 2)
    assert "2 too_large" in done.err


def test_a_job_stays_with_its_program(cortex):
    Path("label.py").write_text(LABEL)
    assert cortex("run", "label.py", "-p", TEXTS, *SIM, "--job", "mine").code == 0
    _notes()
    refused = cortex("run", "notes", "notes", "-p", "question=Why?", *SIM, "--job", "mine")
    assert refused.code == 2
    assert "job mine runs the program" in refused.said()[-1]
    cortex("run", "label.py", "-p", TEXTS, *SIM, "--job", "mine~1").refused("child jobs")


def test_a_program_that_was_interrupted_goes_on_and_one_that_was_changed_says_so(cortex, monkeypatch):
    Path("label.py").write_text(LABEL)
    many = "texts=" + json.dumps([f"It has {n} bugs" for n in range(30)])
    stopped = cortex("run", "label.py", "-p", many, *SIM, "--job", "mine", "--max-job-tokens", 1_500)
    assert stopped.code == 3
    paid = cortex("status", "mine", "--json").last["paid_calls"]
    assert 0 < paid < 30
    Path("label.py").write_text(LABEL + "\n# another line\n")
    monkeypatch.setattr("actors.programs.loader._known", {})  # as in a later process
    rest = cortex("resume", "mine", "--max-job-tokens", 1_000_000, "--json")
    assert rest.code == 0
    assert "the program has changed, so the job begins anew" in rest.said()[0]
    assert (rest.last["answer"], rest.last["paid_calls"], rest.last["reused_calls"]) == (["bug"] * 30, 30, paid)


def test_what_a_changed_program_had_spent_is_counted_to_the_last_commit(cortex, monkeypatch):
    """Its goals are gone, so K, replayed with the new one, knows nothing of what they cost."""
    Path("label.py").write_text(LABEL)
    many = "texts=" + json.dumps([f"It has {n} bugs" for n in range(30)])
    price = ("--price", "input=3,output=15", "--max-output-tokens", 20)
    command = ("run", "label.py", "-p", many, *SIM, *price, "--job", "mine")
    assert cortex(*command, "--max-job-tokens", 500).code == 3
    before = cortex("status", "mine", "--json").last
    fewer = LABEL.replace("in self.texts", "in self.texts[:3]").replace("Answer with", "Say")
    Path("label.py").write_text(fewer)
    monkeypatch.setattr("actors.programs.loader._known", {})  # as in a later process
    after = cortex("resume", "mine", "--max-job-tokens", "none", "--max-cost", before["cost_usd"] + 0.003, "--json").last
    assert after["cost_usd"] + after["cost_assumed_usd"] >= before["cost_usd"] + before["cost_assumed_usd"]
    assert after["paid_calls"] == before["paid_calls"] + 3
    assert cortex("status", "mine", "--json").last["input_tokens"] > before["input_tokens"]


def test_a_cap_holds_over_two_versions_of_a_program(cortex, monkeypatch):
    Path("label.py").write_text(LABEL)
    many = "texts=" + json.dumps([f"It has {n} bugs" for n in range(30)])
    capped = ("--price", "input=3,output=15", "--max-output-tokens", 20, "--max-cost", 0.0012)
    assert cortex("run", "label.py", "-p", many, *SIM, *capped, "--job", "mine").code == 3
    spent = cortex("status", "mine", "--json").last["cost_usd"]
    Path("label.py").write_text(LABEL.replace("in self.texts", "in self.texts[:3]").replace("Answer with", "Say"))
    monkeypatch.setattr("actors.programs.loader._known", {})
    done = cortex("resume", "mine", "--json")
    assert done.code == 3, "there is nothing left of the cap"
    assert 0 < done.last["cost_usd"] == spent <= 0.0012
