"""``--logprobs``: the probability of each typed choice as a column, wherever results go; refused before anything is paid
where no log probabilities are to be had."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow.parquet as pq
import pytest

import cortex as public
from actors.routing.routes import SetupError
from cortex.values.canonical import END_TURN
from cortex.values.reply import Reply, Usage, canonical_reply
from tests.cli.table_files import ASK, SIM, table
from tests.cli.test_chat_completions import simulated, stats

SCHEMA = {
    "type": "object", "required": ["label", "score", "sure"],
    "properties": {
        "label": {"enum": ["bug", "praise"]}, "score": {"type": "integer"}, "sure": {"type": "boolean"},
    },
}  # fmt: skip
TYPED = (*ASK, "--schema", "schema.json", "--logprobs")
CHANCES = ("label_probability", "sure_probability")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table(Path("t.csv"), 6)
    Path("schema.json").write_text(json.dumps(SCHEMA))


def cells(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_in_each_format_and_over_http_as_in_process(cortex: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cortex("batch", "t.csv", *TYPED, "--ordered", "-o", "o.csv", *SIM, "--job", "a")
    assert done.code == 0, done.err
    rows = cells("o.csv")
    assert list(rows[0]) == ["ticket_id", "label", "score", "sure", *CHANCES, "answer", "error"]
    chances = [[float(row[name]) for name in CHANCES] for row in rows]
    assert all(0.5 < chance < 1 for row in chances for chance in row)
    assert cortex("results", "a", "-o", "o.parquet").code == 0
    read = pq.read_table("o.parquet")
    assert [str(read.schema.field(name).type) for name in CHANCES] == ["double", "double"]
    assert [[row[name] for name in CHANCES] for row in read.to_pylist()] == chances
    lines = {}
    with simulated("error=0") as url:
        for api in ("chat", "responses"):
            job = ("batch", "t.csv", *TYPED, "--ordered", "-o", f"{api}.jsonl", "--model", "sim-1", "--api", api,
                   "--base-url", url, "--job", api)  # fmt: skip
            for _ in range(2):
                monkeypatch.setenv("OPENAI_API_KEY", "k")  # a command takes the keys out of the environment
                done = cortex(*job)
                assert done.code == 0, done.err
            lines[api] = [json.loads(line) for line in Path(f"{api}.jsonl").read_text().splitlines()]
        assert stats(url)["worked"] == 12
    assert all(0.5 < line[name] < 1 for line in lines["chat"] for name in CHANCES)
    assert lines["responses"] == lines["chat"]


def test_a_text_answer_has_the_probability_of_its_tokens(cortex: Any) -> None:
    done = cortex("batch", "t.csv", *ASK, "--logprobs", "--answer-as", "verdict", "-o", "o.csv", *SIM)
    assert done.code == 0, done.err
    assert list(cells("o.csv")[0]) == ["ticket_id", "verdict_probability", "verdict", "error"]
    assert all(0.5 < float(row["verdict_probability"]) < 1 for row in cells("o.csv"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--model", "claude-haiku-4-5"), "--provider openai"),
        (("--model", "m", "--base-url", "http://127.0.0.1:9", "--api", "messages"), "or --api responses for"),
        (("--model", "m", "--provider", "groq", "--schema-as", "prompt"), "Groq gives no log probabilities"),
        (("--model", "gpt-4.1", "--provider", "openai", "--top-logprobs", "21"), "OpenAI gives 20 at most"),
        (("--model", "sim", "--via", "batches"), "leave --via out"),
        (("--model", "gpt-4.1", "--provider", "openai", "--fallback", "anthropic:claude-haiku-4-5"), "Anthropic"),
        (("--model", "sim", "--schema-as", "tool"), "give --schema-as format or prompt"),
        (("--model", "sim", "--schema", "none.json"), "no field of the schema is a choice"),
    ],
)  # fmt: skip
def test_refused_in_one_line_before_anything_is_paid(
    cortex: Any, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], text: str
) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GROQ_API_KEY"):
        monkeypatch.setenv(name, "k")
    Path("none.json").write_text(json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}}))
    done = cortex("batch", "t.csv", *TYPED, "-o", "o.csv", *options)
    (line,) = [each for each in done.err.splitlines() if "logprobs" in each]
    assert (done.code, text in line, Path("o.csv").exists()) == (2, True, False), done.err


def test_top_logprobs_alone_is_refused(cortex: Any) -> None:
    done = cortex("batch", "t.csv", *ASK, "--top-logprobs", "5", "-o", "o.csv", *SIM)
    assert (done.code, "give --logprobs too" in done.err) == (2, True)


def test_a_question_with_log_probabilities_is_another_question(cortex: Any) -> None:
    assert cortex("batch", "t.csv", *TYPED[:-1], "-o", "a.csv", *SIM).code == 0
    done = cortex("batch", "t.csv", *TYPED, "-o", "b.csv", *SIM, "--json")
    assert (done.last["calls"], done.last["reused_calls"]) == (6, 0)
    again = cortex("batch", "t.csv", *TYPED, "-o", "c.csv", *SIM, "--json")
    assert again.last["reused_calls"] == 6 and cells("c.csv") != []


class Typed(msgspec.Struct):
    label: Literal["bug", "praise"]
    other: Literal["a", "b"] | None = None


def test_in_python_with_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"id": "ticket_id", "schema": Typed, "model": "sim", "progress": False, "cluster": "inline"}
    answers = public.batch("t.csv", "{{text}}", logprobs=True, top_logprobs=3, **options)
    assert all(0 < row["label_probability"] <= 1 for row in answers.rows)
    assert "other_probability" in answers.rows[0]
    assert str(answers.to_arrow().schema.field("label_probability").type) == "double"
    with pytest.raises(SetupError, match="give logprobs=True too"):
        public.batch("t.csv", "{{text}}", top_logprobs=3, **options)


class Told:
    """Model object with the log probabilities of some replies; others have none, as those of reasoning models."""

    endpoint = "told:1"
    rate = None

    def __init__(self) -> None:
        self.calls = 0

    async def call(self, body: bytes, **more: Any) -> Reply:
        self.calls += 1
        asked = json.loads(body)
        assert (asked["logprobs"], asked["top_logprobs"]) == (True, 20)
        text = '{"label":"bug"}' if self.calls > 1 else "bug"
        tokens = [['{"label":"', 0.0, [['{"label":"', 0.0]]], ["bug", -0.5, [["bug", -0.5], ["praise", -1.0]]], ['"}', 0.0, []]]
        return canonical_reply(
            [{"type": "text", "text": text}], stop_reason=END_TURN, model="told", usage=Usage(5, 3),
            logprobs=tokens if "crashes 1" not in str(asked["messages"]) else None,
        )  # fmt: skip

    async def count_tokens(self, body: bytes) -> int | None:
        return None

    async def close(self) -> None:
        pass


def test_a_reply_without_log_probabilities_has_an_empty_cell_and_a_repeated_answer_its_own() -> None:
    answers = public.batch(
        ["It crashes 0 times", "It crashes 1 times"], "{{text}}", schema=Typed, logprobs=True, model=Told(),
        concurrency=1,
    )  # fmt: skip
    assert [row["label_probability"] for row in answers.rows] == [pytest.approx(0.622459, abs=1e-5), None]
    assert [row["error"] for row in answers.rows] == [None, None]
