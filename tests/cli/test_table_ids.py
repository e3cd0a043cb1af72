"""Ids of any form through every road: they come back as they are, and resume and retry find their rows."""

from __future__ import annotations

import csv
import json
import random
import uuid
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cortex as public
from actors.files.sources.table_source import ID_CHARACTERS_MAX

CUT = ("--model", "sim", "--sim", "error=0", "--max-output-tokens", "3")
WHOLE = ("--max-output-tokens", "200")
ROADS = {"plain": (), "batches": ("--via", "batches"), "shards": ("--shards", "2")}
FORMS = ("csv", "jsonl", "parquet")


def _texts(seed: int) -> list[str]:
    """Ids that are text: any characters that a text file may hold, and any length up to the bound."""
    rng = random.Random(seed)
    letters = "aZ09-_./:?&=% ,;'\"\\|{}[]#@+~äß日本語\u0301\u200d\U0001f600\u05d0\u202e\u00a0$\t"
    odd = ["".join(rng.choices(letters, k=rng.choice([2, 9, 64, 65, 300]))).strip() or "x" for _ in range(12)]
    same_start = "u" * (ID_CHARACTERS_MAX - 1)
    known = [
        "007", "7", "7.0", "1e3", "-0", "null", "true", "NaN", "a b", "a  b", "row\nbreak", '"quoted"', "{{text}}", "=1+1",
        "https://example.org/a/b?q=1&r=%20#f", "C:\\data\\x.txt", "ä", "a\u0308", same_start + "1", same_start + "2", "0" * 65,
        str(uuid.UUID(int=rng.getrandbits(128))), "row:1", "1~2", "a\x1fb", "\x7f",
    ]  # fmt: skip
    return list(dict.fromkeys(odd + known))


def _write(path: Path, ids: list[Any]) -> None:
    texts = [f"It crashes for the {n}th time" for n in range(len(ids))]
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("key", "text"), *zip(ids, texts, strict=True)])
    elif path.suffix == ".jsonl":
        rows = (json.dumps({"key": each, "text": text}) for each, text in zip(ids, texts, strict=True))
        path.write_text("".join(f"{row}\n" for row in rows))
    else:
        pq.write_table(pa.table({"key": ids, "text": texts}), path)


def _read(path: Path) -> list[Any]:
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [row["key"] for row in csv.DictReader(file)]
    if path.suffix == ".jsonl":
        return [json.loads(line)["key"] for line in path.read_text().splitlines()]
    return list(pq.read_table(path)["key"].to_pylist())


def _through(cortex: Any, ids: list[Any], form: str, road: str) -> list[Any]:
    """Ask rows so that all are cut and fail, stopped midway, then retried: ids of the results of the last."""
    _write(Path(f"in.{form}"), ids)
    ask = ("--prompt", "Tell this again: {{text}}", "--id", "key", "--ordered", *CUT, *ROADS[road])
    done = cortex("batch", f"in.{form}", *ask, "-o", f"o.{form}", "--job", "j", "--max-job-tokens", "300")
    assert done.code == 3, done
    done = cortex("resume", "j", "--max-job-tokens", "none")
    assert done.code == 1, done
    if road == "shards":  # their rows are in the journals of child jobs, and are not retried one by one
        return _read(Path(f"o.{form}"))
    assert _read(Path(f"o.{form}")) == ids
    done = cortex("retry", "j", "--kind", "cut", *WHOLE)
    assert done.code == 0, done
    return _read(Path(f"o.{form}"))


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("form", FORMS)
def test_ids_of_text_come_back_from_stop_resume_and_retry_on_every_road(cortex: Any, form: str, road: str) -> None:
    ids = _texts(FORMS.index(form))
    assert _through(cortex, ids, form, road) == ids
    if road != "shards":
        for each in random.Random(0).sample([each for each in ids if each.isprintable()], 4):
            assert "It crashes for the" in cortex("inspect", "j", f"row:{each}").out, each


TYPED = {
    "int64": (pa.array([0, -1, 2**53 + 1, 2**63 - 1]), None), "uint64": (pa.array([0, 2**64 - 1], pa.uint64()), None),
    "float64": (pa.array([1.0, -2.0, 1e15, 0.0]), ["1", "-2", "1000000000000000", "0"]),
    "float32": (pa.array([1.0, 16777216.0], pa.float32()), ["1", "16777216"]),
    "uuid": (pa.array([uuid.UUID(int=n).bytes for n in range(3)], pa.uuid()), [str(uuid.UUID(int=n)) for n in range(3)]),
    "dictionary": (pa.array(["b", "a"]).dictionary_encode(), None), "large_string": (pa.array(["b", "a"], pa.large_string()), None),
    "string_view": (pa.array(["b", "a"], pa.string_view()), None), "binary": (pa.array([b"b", b"a"]), ["b", "a"]),
    "date": (pa.array([1, 2], pa.date32()), ["1970-01-02", "1970-01-03"]), "decimal": (pa.array(["1", "2"]).cast(pa.decimal128(5, 1)), ["1.0", "2.0"]),
}  # fmt: skip


@pytest.mark.parametrize("road", ["plain", "batches"])
@pytest.mark.parametrize("kind", TYPED)
def test_typed_ids_keep_their_type_and_their_rows_are_found_by_their_text(cortex: Any, kind: str, road: str) -> None:
    column, texts = TYPED[kind]
    texts = texts or [str(each) for each in column.to_pylist()]
    pq.write_table(pa.table({"key": column, "text": [f"number {n}" for n in range(len(column))]}), "in.parquet")
    ask = ("--prompt", "Tell this again: {{text}}", "--id", "key", "--ordered", *CUT, *ROADS[road])
    assert cortex("batch", "in.parquet", *ask, "-o", "o.parquet", "--job", "j").code == 1
    assert cortex("retry", "j", *WHOLE).code == 0
    found = pq.read_table("o.parquet")
    assert (found["key"].type, found["key"].to_pylist(), found["error"].null_count) == (column.type, column.to_pylist(), len(column))
    for n, text in enumerate(texts):
        assert f"number {n}" in cortex("inspect", "j", f"row:{text}").out, text


@pytest.mark.parametrize(
    ("line", "key"),
    [('1.0', "1"), ("1e3", "1000"), ("-0.0", "0"), ("12345678901234567890.0", "12345678901234567890"), ("9" * 400, "9" * 400)],
)  # fmt: skip
def test_whole_numbers_of_json_are_ids_however_they_are_written(cortex: Any, line: str, key: str) -> None:
    Path("in.jsonl").write_text(f'{{"key":{line},"text":"x"}}\n')
    ask = ("--prompt", "Tell this again: {{text}}", "--id", "key", "--model", "sim", "--sim", "error=0", *WHOLE)
    assert cortex("batch", "in.jsonl", *ask, "-o", "o.jsonl", "--job", "j").code == 0
    assert Path("o.jsonl").read_text().startswith(f'{{"key":{line},')
    assert "Tell this again" in cortex("inspect", "j", f"row:{key}").out


def test_ids_that_differ_by_outer_spaces_or_the_form_of_a_number_are_one_row(cortex: Any) -> None:
    ask = ("--prompt", "Tell this again: {{text}}", "--id", "key", "--model", "sim", "--ordered", *WHOLE, "--accept-bad", "100%")
    ids = ("1", '"1"', "1.0", "1e0", '" 1"', '"1\\n"', '"01"', '"e\\u0301"', '"\\u00e9"', '" x "', '"x"')
    Path("in.jsonl").write_text("".join(f'{{"key":{each},"text":"x"}}\n' for each in ids))
    done = cortex("batch", "in.jsonl", *ask, "-o", "o.jsonl", "--json")
    assert [json.loads(line)["key"] for line in Path("o.jsonl").read_text().splitlines()] == [1, "01", "e\u0301", "\u00e9", " x "]
    assert done.last["rows_unreadable"] == 6
    Path("in.csv").write_text("key,text\n" + "".join(f"{each},x\n" for each in ("1", " 1", "01", "1.0", "1 ", "+1", "1e0")))
    assert cortex("batch", "in.csv", *ask, "-o", "o.csv").code == 3
    assert [line.split(",")[0] for line in Path("o.csv").read_text().splitlines()] == ["key", "1", "01", "1.0", "+1", "1e0"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("null", "has no key"), ('" "', "has no key"), ("1.5", "key is 1.5: an id is text or a whole number"), ("NaN", "has no key"),
        ("1e400", "1e400"), ("true", "key is true"), ("[1]", "key is [1]"), ("-Infinity", "key is -Infinity: an id"),
        (f'"{"x" * (ID_CHARACTERS_MAX + 1)}"', f"key has {ID_CHARACTERS_MAX + 1:,} characters: at most 2,048"),
    ],
)  # fmt: skip
def test_what_is_no_id_is_told_with_its_line(cortex: Any, text: str, wrong: str) -> None:
    Path("in.jsonl").write_text(f'{{"key":"a","text":"x"}}\n{{"key":{text},"text":"x"}}\n')
    ask = ("--prompt", "Tell this again: {{text}}", "--id", "key", "--model", "sim", "--sim", "error=0", *WHOLE)
    done = cortex("batch", "in.jsonl", *ask, "-o", "o.jsonl", "--accept-bad", "100%")
    assert done.code == (0 if text == "1e400" else 2 if "characters" in wrong else 3), done
    assert text == "1e400" or f"line 2: {wrong}" in done.err


def _python(ids: list[Any]) -> Any:
    yield from ({"key": each, "text": f"number {n}"} for n, each in enumerate(ids))


@pytest.mark.parametrize("via", ["", "batches"])
def test_ids_from_python_come_back_and_are_retried(cortex: Any, via: str) -> None:
    mixed = [uuid.UUID(int=7), 1.0, 2**70, "https://x.org/?q=ä b", Path("a/b"), pd.Timestamp("2024-02-29"), b"bytes"]
    ids = [*mixed, *_texts(9)]
    wanted = [str(mixed[0]), 1.0, 2**70, "https://x.org/?q=ä b", "a/b", "2024-02-29T00:00:00", "bytes", *_texts(9)]
    options: dict[str, Any] = {"id": "key", "job": "j", "model": "sim", "progress": False} | ({"via": via} if via else {})
    answers = public.batch(_python(ids), "Tell this again: {{text}}", max_output_tokens=3, **options)
    assert [row["key"] for row in answers] == wanted
    assert all(row["error"].startswith("cut: ") for row in answers)
    assert cortex("retry", "j", *WHOLE).code == 0
    assert cortex("results", "j", "-o", "o.jsonl").code == 0
    lines = [json.loads(line) for line in Path("o.jsonl").read_text().splitlines()]
    assert [(row["key"], row["error"]) for row in lines] == [(each, None) for each in wanted]
