"""``--votes``: rows that are asked several times, decided by count or by probability, from the command line and Python."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import cortex as public
from actors.routing.routes import SetupError
from tests.cli.table_files import ASK, SIM, table

SCHEMA = {
    "type": "object", "required": ["label", "score"],
    "properties": {"label": {"enum": ["bug", "praise"]}, "score": {"type": "integer"}},
}  # fmt: skip
VOTED = (*ASK, "--schema", "schema.json", "--votes", "5")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table(Path("t.csv"), 6)
    Path("schema.json").write_text(json.dumps(SCHEMA))


def rows(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_votes_on_each_row_by_count_and_by_probability(cortex: Any) -> None:
    done = cortex("batch", "t.csv", *VOTED, "--ordered", "-o", "o.csv", *SIM, "--json")
    assert (done.code, done.last["rows_succeeded"], done.last["calls"]) == (0, 6, 18), done.err  # 3 equal ones of 5
    assert list(rows("o.csv")[0]) == ["ticket_id", "label", "score", "answer", "error"]
    again = cortex("batch", "t.csv", *VOTED, "--ordered", "-o", "p.csv", *SIM, "--json", "--job", "again")
    assert (again.last["paid_calls"], again.last["reused_calls"]) == (0, 18)
    assert rows("p.csv") == rows("o.csv")
    weighed = (*VOTED, "--votes-by", "probability", "--logprobs")
    done = cortex("batch", "t.csv", *weighed, "--ordered", "-o", "w.csv", *SIM, "--json")
    assert (done.code, done.last["rows_succeeded"]) == (0, 6) and 18 <= done.last["calls"] <= 30, done.err
    assert all(0.5 < float(row["label_probability"]) <= 1 for row in rows("w.csv"))


def test_a_plan_counts_all_votes(cortex: Any) -> None:
    options = ("plan", "t.csv", *ASK, "--schema", "schema.json", *SIM, "--price", "input=3,output=15", "--json")
    one, five = (json.loads(cortex(*options, *more).out) for more in ((), ("--votes", "5")))
    assert (five["calls"], five["rows"]["left"]) == (5 * one["calls"], one["rows"]["left"])
    for name in ("input_tokens", "output_tokens"):
        assert five[name]["expected"] == pytest.approx(5 * one[name]["expected"], rel=0.01)
    assert five["cost_usd"]["worst"] > 2 * one["cost_usd"]["worst"]  # the retry budget does not grow so


@pytest.mark.parametrize(
    ("options", "arguments", "text"),
    [
        (("--votes", "1"), {"votes": 1}, "give 2 to 100"),
        (("--votes", "101"), {"votes": 101}, "give 2 to 100"),
        (("--votes-by", "count"), {"votes_by": "count"}, "says how"),
        (("--votes", "3", "--votes-by", "odd"), {"votes": 3, "votes_by": "odd"}, "give count or probability"),
        (("--votes", "3", "--votes-by", "probability"), {"votes": 3, "votes_by": "probability"}, "needs the probabilities"),
        (("--votes", "3", "--schema", "none.json"), {"votes": 3, "schema": "none.json"}, "only choices of listed values"),
    ],
)  # fmt: skip
def test_refused_in_one_line_before_anything_is_paid(
    cortex: Any, options: tuple[str, ...], arguments: dict[str, Any], text: str
) -> None:
    Path("none.json").write_text(json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}}))
    done = cortex("batch", "t.csv", *ASK, "--schema", "schema.json", *options, "-o", "o.csv", *SIM)
    assert (done.code, text in done.err, Path("o.csv").exists()) == (2, True, False), done.err
    with pytest.raises(SetupError, match=text) as raised:
        public.batch("t.csv", "{{text}}", **({"schema": SCHEMA, "model": "sim", "progress": False} | arguments))
    assert "--" not in str(raised.value)


def test_in_python_over_shards(cortex: Any) -> None:
    found = public.batch(
        "t.csv", "{{text}}", id="ticket_id", schema=SCHEMA, votes=3, votes_by="probability", logprobs=True, model="sim",
        progress=False, shards=2,
    )  # fmt: skip
    assert len(found.rows) == 6 and all(0.5 < row["label_probability"] <= 1 for row in found.rows)
