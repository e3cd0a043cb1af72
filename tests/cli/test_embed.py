"""``cortex embed``: a table in, vectors out; killed, resumed, capped and refused as every other job."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow.parquet as pq
import pytest

import cortex as public
from actors.routing.routes import SetupError
from cortex.programs.parts.embedding import packed
from cortex.values.reply import Reply, Usage, canonical_reply
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


def test_without_text_the_vectors_leave_the_journal_once_they_are_written(cortex: Any) -> None:
    table("t.csv", ["it crashes"])
    ask = ("embed", "t.csv", "--id", "id", "--model", "sim", "--job", "mine")
    assert cortex(*ask, "-o", "v.parquet", "--no-keep-text").code == 0
    assert len(vectors("v.parquet")["r0"]) == 64
    assert "mine keeps no text" in cortex("results", "mine", "-o", "x.jsonl").err
    assert Path("x.jsonl").read_text() == ""


def test_shards_divide_the_rows_and_ask_for_the_same_vectors(cortex: Any) -> None:
    table("t.csv", [f"ticket {at} crashes" for at in range(60)])
    ask = ("embed", "t.csv", "--id", "id", "--model", "sim", "--rows-per-request", 8, "--json")
    assert cortex(*ask, "-o", "v.parquet").code == 0
    done = cortex(*ask, "-o", "w.parquet", "--shards", 3, "--ordered", "--job", "mine")
    assert (done.code, done.last["rows_succeeded"], done.last["calls"]) == (0, 60, 9), done.err  # 20 rows a shard: 8, 8, 4
    assert [row["id"] for row in pq.read_table("w.parquet").to_pylist()] == [f"r{at}" for at in range(60)]
    assert vectors("w.parquet") == vectors("v.parquet")
    assert cortex("results", "mine", "-o", "x.parquet").code == 0 and vectors("x.parquet") == vectors("v.parquet")


@pytest.mark.long
def test_a_job_that_is_killed_loses_the_requests_in_flight_alone(cortex: Any) -> None:
    table("t.csv", [f"ticket {at}" for at in range(400)])
    with simulated("latency_ms=60", "latency_spread=0", "slots=4") as url:
        command = ("embed", "t.csv", "--id", "id", "-o", "v.parquet", "--job", "mine", "--model", "e", "--base-url", url,
                   "--rows-per-request", 4, "--concurrency", 4)  # fmt: skip
        with started(*command, env=environment()) as child:
            until(lambda: stats(url)["complete_answers"] >= 30)
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


SIM: Any = {"model": "sim", "progress": False, "cluster": "inline"}


def test_in_python_a_vector_is_an_array_that_numpy_takes(cortex: Any) -> None:
    texts = ["a cat", "a dog", "", "a cat"]
    found = public.embed(texts, ordered=True, rows_per_request=2, **SIM)
    assert [sorted(row) for row in found.rows] == [["embedding", "error", "row"]] * 4
    assert found.rows[2]["embedding"] is None and "text is empty" in found.rows[2]["error"]
    given = np.stack([row["embedding"] for row in found.rows if row["error"] is None])
    assert (given.dtype, given.shape) == (np.float32, (3, 64)) and (given[0] == given[2]).all() and (given[0] != given[1]).any()
    assert str(found.to_arrow().schema.field("embedding").type) == "fixed_size_list<item: float>[64]"
    assert found.to_polars().schema["embedding"] == polars.Array(polars.Float32, 64)
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and (frame["embedding"][1] == given[1]).all() and frame["embedding"][2] is None
    table("t.csv", texts)
    assert cortex("embed", "t.csv", "--id", "id", "-o", "v.parquet", "--model", "sim").code == 2  # a row is refused
    assert vectors("v.parquet")["r1"] == given[1].tolist()


def test_in_python_from_a_frame_to_a_file_and_again(cortex: Any) -> None:
    rows = polars.DataFrame({"id": ["x", "y"], "body": ["a cat", "a dog"], "n": [1, 2]})
    ask: Any = {"id": "id", "with_input": True, "dimensions": 8, "answer_as": "vector", "output": "v.parquet", "job": "mine"}
    found = public.embed(rows, "body", **ask, shards=2, **SIM)
    assert found.to_polars().columns == ["id", "body", "n", "vector", "error"]
    assert [len(row["vector"]) for row in found.rows] == [8, 8]
    assert [row["vector"] for row in pq.read_table("v.parquet").to_pylist()] == [row["vector"].tolist() for row in found.rows]
    again = public.embed(rows, "body", **ask, shards=2, **SIM)
    assert [row["vector"] for row in again.rows] == [row["vector"] for row in found.rows]
    assert public.embed(rows, prompt="{{body}} {{n}}", model="sim", progress=False).rows[0]["embedding"] is not None


class Vectors:
    """Model object whose vector of a text is its length."""

    endpoint = "lengths:1"
    rate = None

    async def call(self, body: bytes, **more: Any) -> Reply:
        texts = json.loads(body)["input"]
        content = [{"type": "text", "text": packed([float(len(text))])} for text in texts]
        return canonical_reply(content, stop_reason="end_turn", model="lengths", usage=Usage(5, 0))

    async def count_tokens(self, body: bytes) -> int | None:
        return None

    async def close(self) -> None:
        pass


def test_in_python_a_model_object_gives_the_vectors() -> None:
    found = public.embed(["a", "abc"], model=Vectors(), progress=False, cluster="inline")
    assert [row["embedding"].tolist() for row in found.rows] == [[1.0], [3.0]]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"column": "text", "prompt": "{{text}}"}, "give one of them"),
        ({"prompt": "text"}, "names no column"),
        ({"rows_per_request": 0}, "rows_per_request=0: give 1 to 2048"),
        ({"dimensions": 0}, "dimensions=0"),
        ({"output": "v.csv"}, "output='v.csv': vectors are written as Parquet"),
        ({"model": ""}, "no model is given"),
        ({"model": lambda prompt: "x"}, "a function of a prompt gives no vectors"),
        ({"id": "text", "answer_as": "text"}, "two columns"),
        ({"model": "claude-haiku-4-5"}, "Anthropic has no embeddings"),
        ({"model": "m", "base_url": "http://127.0.0.1:9", "via": "batches"}, "embeddings are asked for in single requests"),
    ],
)  # fmt: skip
def test_in_python_refused_before_anything_is_paid(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], text: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    with pytest.raises(SetupError, match=text):
        public.embed(["a"], **(SIM | arguments))


PLAN = ("plan", "t.csv", "--embed", "--id", "id", "-o", "v.parquet", "--model", "text-embedding-3-small", "--provider", "openai")


def test_a_plan_tells_tokens_requests_and_price_before_anything_is_paid(cortex: Any) -> None:
    table("t.csv", [f"ticket {at:03d} crashes" for at in range(100)])  # 18 bytes each
    done = cortex(*PLAN, "--rows-per-request", 32, "--max-cost", "0.01", "--json")
    plan = json.loads(done.out)
    assert (done.code, plan["calls"], plan["rows"]["to_ask"], plan["rows"]["left"]) == (0, 4, 100, 100), done.err
    assert (plan["input_tokens"]["low"], plan["input_tokens"]["high"], plan["output_tokens"]["high"]) == (360, 900, 0)
    assert plan["cost_usd"]["expected"] == pytest.approx(1_800 / 3.5 * 0.02 / 1e6, rel=0.01)
    assert plan["cost_usd"]["worst"] >= 2_000 * 0.02 / 1e6
    assert (plan["price"], plan["routes"][0]["route"], len(plan["routes"])) == ("genai-prices: text-embedding-3-small", "now", 1)
    text = cortex(*PLAN, "--max-cost", "0.000001")
    assert text.code == 1 and "none meets --max-cost" in text.out and "`embed` in place of `plan --embed`" in text.out
    assert "output" not in text.out.split("cost")[0] and not Path("v.parquet").exists()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--sample", 5), "needs no sample"),
        (("--provider", "groq"), "Groq has no embeddings"),
        (("--column", "body"), "body"),
        (("-o", "v.csv"), "vectors are written as Parquet"),
    ],
)
def test_a_plan_for_vectors_refuses_what_the_job_would(cortex: Any, options: tuple[Any, ...], text: str) -> None:
    table("t.csv", ["a"])
    done = cortex(*PLAN, *options)
    assert done.code == 2 and text in done.err, done.err
    assert "give --embed too" in cortex("plan", "t.csv", "--prompt", "{{text}}", "--column", "text", "--model", "sim").err
