"""``--via batches``: the same rows by the provider's road of message batches, at its price; and batches in doubt."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import cortex as public
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.routing.routes import remembered
from tests.cli.cli_runner import each_once, requests
from tests.cli.test_session import Label

COUNT = 30
COMMAND = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--price", "input=10,output=10")


def test_the_rows_cost_half(cortex):
    requests(Path("in.jsonl"), COUNT)
    plain = cortex(*COMMAND, "--job", "plain", "--json")
    assert plain.code == 0
    Path("out.jsonl").unlink()
    done = cortex(*COMMAND, "--job", "mine", "--via", "batches", "--fresh", "--json")
    assert done.code == 0, done.err
    assert "by message batches" in done.said()[0]
    each_once(Path("out.jsonl"), COUNT)
    assert (done.last["rows_succeeded"], done.last["paid_calls"]) == (COUNT, COUNT)
    assert done.last["cost_usd"] == pytest.approx(plain.last["cost_usd"] / 2, abs=1e-6)
    shown = cortex("status", "mine", "--json").last
    assert shown["route"].endswith(" by batches")
    assert shown["batches"] == []
    assert remembered(last_state(StateFolder(os.environ["CORTEX_STATE"]), "mine").terms.places).via == "batches"


def test_python_takes_the_same_road(tmp_path, monkeypatch):
    monkeypatch.setenv("CORTEX_STATE", str(tmp_path))
    done = public.run(
        Label(texts=("It has a bug", "praise it")), model="sim", via="batches", progress=False, job="mine"
    )
    assert done.answer == ["bug", "praise"]
    assert done.facts["route"].endswith(" by batches")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--submitted", "2"], ["--submitted '2'", "N=BATCH"]),
        (["--submitted", "two=msgbatch_1"], ["--submitted 'two=msgbatch_1'"]),
        (["--not-submitted", "2=msgbatch_1"], ["--not-submitted '2=msgbatch_1'", "is no decision: give N"]),
        (["--not-submitted", "2", "--submitted", "2=m"], ["give each number once"]),
        (["--not-submitted", "2"], ["job mine has no message batch 2 in doubt; none is in doubt"]),
    ],
)
def test_words_about_batches_in_doubt(cortex, arguments, words):
    requests(Path("in.jsonl"), COUNT)
    assert cortex(*COMMAND, "--job", "mine", "--max-job-tokens", 400).code == 3
    cortex("resume", "mine", *arguments).refused(*words)
