"""``--via batches``: the same rows by the provider's road of message batches, at its price; and batches in doubt."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import cortex as public
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.routing.routes import remembered
from tests.cli.cli_runner import each_once, request, requests
from tests.cli.test_session import Label
from tests.edge.providers.test_foreign_thoughts import CLAUDE, FOREIGN, Claude, conversation
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import http

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


@pytest.mark.long  # the breaker opens after seconds
def test_a_fallback_to_claude_leaves_foreign_thoughts_out(cortex):
    asked = [json.loads(conversation(each, CLAUDE)) | {"model": "m"} for each in sorted(FOREIGN)]
    Path("in.jsonl").write_text("".join(request(f"r{at}", **each) + "\n" for at, each in enumerate(asked)))
    claude = Claude()
    with served(lambda _: http({"error": {"message": "overloaded"}}, 503)) as away, served(claude) as there:
        where = ("--model", "m", "--api", "chat", "--base-url", away.url, "--fallback", f"m@{there.url}")
        done = cortex("batch", "in.jsonl", "-o", "out.jsonl", *where)
    assert (done.code, claude.accepted) == (0, 3), done.err
    each_once(Path("out.jsonl"), 3)
