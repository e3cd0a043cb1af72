"""``cortex embed``: a table in, vectors out; killed, resumed, capped and refused as every other job."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.cli_runner import environment, started, until
from tests.cli.test_chat_completions import change, simulated, stats


def table(path: str, texts: list[str]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("id", "text", "team"), *((f"r{at}", text, "a") for at, text in enumerate(texts))])


def vectors(path: str) -> dict[str, Any]:
    return {row["id"]: row["embedding"] or row["error"] for row in pq.read_table(path).to_pylist()}


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORTEX_SERVER_KEY", "k")


def test_a_vector_for_every_row_as_a_list_of_fixed_size(cortex: Any) -> None:
    table("t.csv", [f"ticket {at} crashes" for at in range(150)])
    done = cortex("embed", "t.csv", "--id", "id", "-o", "v.parquet", "--model", "sim", "--ordered", "--with-input",
                  "--json", "--job", "mine")  # fmt: skip
    assert (done.code, done.last["rows_succeeded"], done.last["calls"]) == (0, 150, 3), done.err
    read = pq.read_table("v.parquet")
    assert str(read.schema.field("embedding").type) == "fixed_size_list<element: float>[64]"
    assert read.column_names == ["id", "text", "team", "embedding", "error"]
    assert read.column("id").to_pylist() == [f"r{at}" for at in range(150)]
    assert all(sum(x * x for x in each) == pytest.approx(1, abs=1e-5) for each in read.column("embedding").to_pylist())
    again = cortex("embed", "t.csv", "--id", "id", "-o", "w.parquet", "--model", "sim", "--ordered", "--json")
    assert (again.last["reused_calls"], vectors("w.parquet") == vectors("v.parquet")) == (3, True)
    assert cortex("results", "mine", "-o", "x.jsonl").code == 0
    assert isinstance(json.loads(Path("x.jsonl").read_text().splitlines()[0])["embedding"], str)


@pytest.mark.long
def test_a_job_that_is_killed_loses_the_requests_in_flight_alone(cortex: Any) -> None:
    table("t.csv", [f"ticket {at}" for at in range(400)])
    with simulated("latency_ms=60", "latency_spread=0", "slots=4") as url:
        command = ("embed", "t.csv", "--id", "id", "-o", "v.parquet", "--job", "mine", "--model", "e", "--base-url", url,
                   "--rows-per-request", 4, "--concurrency", 4)  # fmt: skip
        with started(*command, env=environment()) as child:
            until(lambda: stats(url)["complete_answers"] >= 30, timeout_s=60)
            child.kill()
            child.wait()
        done = cortex(*command, "--json")
        seen = stats(url)
    assert (done.code, done.last["rows_succeeded"]) == (0, 400), done.err
    assert seen["complete_answers"] <= 100 + 4, "a crash re-pays at most what was in flight"
    assert len(vectors("v.parquet")) == 400


def test_one_row_that_is_refused_costs_no_other(cortex: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table("t.csv", ["a cat", "word " * 9_000, "a dog", ""])
    with simulated() as url:
        done = cortex("embed", "t.csv", "--id", "id", "-o", "v.parquet", "--model", "e", "--base-url", url, "--json",
                      "--job", "mine")  # fmt: skip
        found = vectors("v.parquet")
        assert (done.code, done.last["rows_succeeded"], done.last["rows_failed"]) == (1, 2, 2), done.err
        assert "maximum input length" in found["r1"] and "text is empty" in found["r3"]
        assert len(found["r0"]) == len(found["r2"]) == 64
        monkeypatch.setenv("CORTEX_SERVER_KEY", "k")  # a command takes the keys out of the environment
        again = cortex("retry", "mine", "--json")
        assert (again.code, again.last["rows_succeeded"], again.last["rows_failed"]) == (1, 2, 2), again.err
        assert vectors("v.parquet") == found
        monkeypatch.setenv("CORTEX_SERVER_KEY", "k")
        change(url, {"keys": ["another"]})
        assert cortex("embed", "t.csv", "--id", "id", "-o", "w.parquet", "--model", "e", "--base-url", url).code == 3


def test_a_cap_holds_and_the_job_goes_on_below_another(cortex: Any) -> None:
    table("t.csv", ["some words of a ticket"] * 64)
    ask = ("embed", "t.csv", "-o", "v.parquet", "--model", "sim", "--job", "mine", "--rows-per-request", 8,
           "--price", "input=1000000,output=0", "--concurrency", 1)  # fmt: skip
    done = cortex(*ask, "--max-cost", 500, "--json")
    assert done.code == 3 and 0 < done.last["rows_succeeded"] < 64, done.err
    assert done.last["cost_usd"] <= 500
    done = cortex("resume", "mine", "--max-cost", 100_000, "--json")
    assert (done.code, done.last["rows_succeeded"]) == (0, 64), done.err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("-o", "v.csv", "--model", "sim"), "vectors are written as Parquet"),
        (("-o", "v.parquet"), "no model is given"),
        (("-o", "v.parquet", "--model", "claude-haiku-4-5"), "Anthropic has no embeddings"),
        (("-o", "v.parquet", "--model", "m", "--provider", "groq"), "Groq has no embeddings"),
        (("-o", "v.parquet", "--model", "sim", "--column", "body"), "body"),
        (("-o", "v.parquet", "--model", "sim", "--column", "text", "--prompt", "{{text}}"), "give one of them"),
        (("-o", "v.parquet", "--model", "sim", "--rows-per-request", 3000), "give 1 to 2048"),
        (("-o", "v.parquet", "--model", "sim", "--id", "id", "--answer-as", "id"), "two columns"),
        (("-o", "v.parquet", "--model", "m", "--provider", "openai", "--fallback", "openai:n"), "could not be compared"),
    ],
)
def test_refused_in_one_line_before_anything_is_paid(
    cortex: Any, monkeypatch: pytest.MonkeyPatch, options: tuple[Any, ...], text: str
) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GROQ_API_KEY"):
        monkeypatch.setenv(name, "k")
    table("t.csv", ["a"])
    done = cortex("embed", "t.csv", *options)
    assert done.code == 2 and text in done.err, done.err
    assert not Path("v.parquet").exists()
