"""Python types of answers in a batch: their own code checks each answer, wherever and whenever the job runs."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pydantic
import pytest

import cortex as public
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder, StoreError
from actors.routing.routes import SetupError
from tests.cli.cli_runner import environment, started, until
from tests.cli.table_files import ASK, SIM, table

SHAPES = """
import msgspec
from pydantic import BaseModel, field_validator
from beside import MOST

class Odd(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def odd(cls, value):
        if value % 2 == 0:
            raise ValueError("n must be odd")
        return value

class Small(msgspec.Struct):
    n: int

    def __post_init__(self):
        if self.n > MOST:
            raise ValueError(f"n is above {MOST}")

class Broken(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def broken(cls, value):
        return {}[value]
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORTEX_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("beside", "shapes"):
        sys.modules.pop(name, None)
    yield
    for name in ("beside", "shapes"):
        sys.modules.pop(name, None)


def _shapes(most: int = 9, rows: int = 3) -> None:
    table(Path("t.csv"), rows)
    Path("shapes.py").write_text(SHAPES)
    Path("beside.py").write_text(f"MOST = {most}\n")


def _rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("shards", [(), ("--shards", "2")])
def test_a_validator_of_pydantic_refuses_an_answer_of_the_simulator(cortex: Any, shards: tuple[str, ...]) -> None:
    _shapes()
    ask = ("batch", "t.csv", *ASK, *SIM, *shards)
    done = cortex(*ask, "--schema", "shapes.py:Odd", "-o", "odd.csv", "--meta", "--ordered")
    assert (done.code, "3 failed (3 malformed), 6 calls" in done.err) == (1, True), done.err
    row = _rows("odd.csv")[0]
    assert (row["n"], row["answer"], row["attempts"]) == ("", '{"n":0}', "2")
    assert row["error"] == "malformed: Value error, n must be odd - at `$.n`"
    assert cortex(*ask, "--schema", "shapes.py:Small", "-o", "small.csv").code == 0


def test_a_validator_that_fails_is_told_to_the_model_once() -> None:
    asked: list[str] = []

    def model(prompt: str) -> str:
        asked.append(prompt)
        return '{"n": 4, "name": " Ann "}' if "was refused" in prompt else '{"n": 3}'

    class Even(pydantic.BaseModel):
        n: int
        name: str = "nobody"

        @pydantic.field_validator("n")
        @classmethod
        def even(cls, value: int) -> int:
            if value % 2:
                raise ValueError("n must be even")
            return value

        @pydantic.field_validator("name")
        @classmethod
        def lower(cls, value: str) -> str:
            return value.strip().lower()

    answers = public.batch(["a"], "{{text}}", schema=Even, meta=True, model=model)
    assert [(row["n"], row["name"], row["attempts"]) for row in answers.rows] == [(4, "ann", 2)]
    assert "An earlier answer to this was refused: Value error, n must be even - at `$.n`" in asked[1]
    assert len(asked) == 2


def test_a_type_with_formats_is_checked_by_itself_and_has_its_columns() -> None:
    class Price(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(json_schema_extra={"x-order": 3})

        amount: Decimal
        path: Path
        count: int | None = None

    replies = {"a": '{"amount": "0.10", "path": "x/y"}', "b": '{"amount": "ten", "path": "x"}'}
    answers = public.batch([*replies], "{{text}}", schema=Price, output="o.parquet", model=lambda text: replies[text[0]])
    first, second = sorted(answers.rows, key=lambda row: row["row"])
    assert (first["amount"], first["path"], first["count"], first["error"]) == ("0.10", "x/y", None, None)
    assert second["error"] == "malformed: Input should be a valid decimal - at `$.amount`"
    found = pq.read_table("o.parquet").schema
    assert [str(found.field(name).type) for name in ("amount", "path", "count")] == ["string", "string", "int64"]


def test_an_error_of_the_types_own_code_fails_its_row_and_is_not_paid_again(cortex: Any) -> None:
    _shapes()
    done = cortex("batch", "t.csv", *ASK, *SIM, "--schema", "shapes.py:Broken", "-o", "o.csv")
    assert (done.code, "3 failed (3 faulty), 3 calls" in done.err) == (1, True), done.err
    row = _rows("o.csv")[0]
    assert (row["answer"], row["error"]) == ('{"n":0}', "faulty: Broken raised KeyError: 0")


def test_a_type_or_a_module_beside_it_that_has_changed_makes_another_job(cortex: Any) -> None:
    _shapes()
    ask = ("batch", "t.csv", *ASK, *SIM, "--schema", "shapes.py:Small", "-o", "o.csv", "--job", "j")
    assert cortex(*ask).code == 0
    assert "already complete" in cortex(*ask).err
    _shapes(most=-1)
    sys.modules.pop("beside", None)
    cortex(*ask).refused("job j is complete, and now asks something else", "--overwrite")
    done = cortex(*ask, "--overwrite")
    assert "3 failed (3 malformed)" in done.err
    assert _rows("o.csv")[0]["error"] == "malformed: n is above -1"


def test_results_are_read_without_the_type_and_rows_asked_again_with_it_only(cortex: Any) -> None:
    _shapes()
    ask = ("batch", "t.csv", *ASK, *SIM, "--schema", "shapes.py:Odd", "-o", "o.csv", "--job", "j")
    assert cortex(*ask).code == 1
    text = Path("shapes.py").read_text()
    Path("shapes.py").unlink()
    _forget()
    assert "0 of 3 succeeded, 3 failed" in cortex("status", "j").out
    assert cortex("results", "j", "-o", "again.csv").code == 0
    assert _rows("again.csv") == _rows("o.csv")
    place = f"{Path.cwd() / 'shapes.py'}:Odd"
    cortex("retry", "j").refused(f"the type {place} cannot be imported: FileNotFoundError")
    Path("shapes.py").write_text(text)
    assert "3 rows" in cortex("retry", "j").err


def test_results_of_shards_need_the_type(cortex: Any) -> None:
    _shapes()
    ask = ("batch", "t.csv", *ASK, *SIM, "--schema", "shapes.py:Odd", "-o", "o.csv", "--job", "j", "--shards", "2")
    assert cortex(*ask).code == 1
    text = Path("shapes.py").read_text()
    Path("shapes.py").unlink()
    _forget()
    cortex("results", "j", "-o", "again.csv").refused("the program of j")
    Path("shapes.py").write_text(text)
    assert cortex("results", "j", "-o", "again.csv").code == 0
    assert len(_rows("again.csv")) == 3


def _forget() -> None:
    """Make this process forget the types, as a new process would not know them."""
    from cortex.programs.parts import typed_answers

    typed_answers._registered.clear()


def test_a_job_that_was_killed_goes_on_with_its_type(cortex: Any) -> None:
    _shapes(rows=40)  # of two calls each: it is at work for more than a minute
    slow = ("--model", "sim", "--sim", "latency_ms=1000", "--concurrency", "1")
    ask = ("batch", "t.csv", *ASK, *slow, "--schema", "shapes.py:Odd", "-o", "o.csv", "--job", "j")
    with started(*ask) as running:
        until(lambda: _calls() > 0)
        assert running.poll() is None
        running.kill()
    command = [sys.executable, "-m", "actors.cli", "resume", "j", "--sim", "latency_ms=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 1, done.stderr
    assert {row["error"] for row in _rows("o.csv")} == {"malformed: Value error, n must be odd - at `$.n`"}
    assert len(_rows("o.csv")) == 40


def _calls() -> int:
    try:
        return last_state(StateFolder(os.environ["CORTEX_STATE"]), "j").tally.calls
    except StoreError:
        return 0


def test_the_one_object_of_an_answer_in_words_is_taken() -> None:
    class Label(pydantic.BaseModel):
        label: str

    schema = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}
    for given in (schema, Label):
        said = lambda text: 'It is {"label": "bug"}, I think.'  # noqa: E731
        answers = public.batch(["a"], "{{text}}", schema=given, schema_as="prompt", model=said)
        assert [row["label"] for row in answers.rows] == ["bug"]
        said = lambda text: 'It is {"label": "bug"} or {"label": "praise"}.'  # noqa: E731
        answers = public.batch(["a"], "{{text}}", schema=given, schema_as="prompt", model=said, fresh=True)
        assert answers.rows[0]["error"] == "malformed: the text holds several different JSON objects: answer with one"


def test_a_type_of_a_notebook_or_of_standard_input_is_known_there_only(cortex: Any) -> None:
    code = """
import cortex, msgspec
class Odd(msgspec.Struct):
    n: int
    def __post_init__(self):
        if self.n % 2 == 0:
            raise ValueError("n must be odd")
found = cortex.batch(["a"], "{{text}}", schema=Odd, model="sim", progress=False, job="j")
print(found.rows[0]["error"])
"""
    run = [sys.executable, "-"]
    done = subprocess.run(run, input=code, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.stdout == "malformed: n must be odd\n", done.stderr
    assert "0 of 1 succeeded" in cortex("status", "j").out
    cortex("retry", "j").refused("the type __main__:Odd was given in a notebook or on standard input: go on")


def test_a_type_of_a_script_is_imported_from_its_file(cortex: Any) -> None:
    guard = "\nif __name__ == '__main__':\n    import cortex\n    print(cortex.batch(['a'], '{{text}}', schema=Odd, "
    guard += "model='sim', progress=False, job='j').rows[0]['error'])\n"
    _shapes()
    Path("script.py").write_text(SHAPES + guard)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.stdout == "malformed: Value error, n must be odd - at `$.n`\n", done.stderr
    assert "1 row" in cortex("retry", "j").err


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("shapes.py:Nope", "shapes.py has no Nope"),
        ("none.py:Odd", "cannot be imported: FileNotFoundError: there is no file"),
        ("shapes:Nope", "shapes has no Nope"),
        ("shapes.py:MOST", "has no JSON schema"),
    ],
)
def test_a_type_that_cannot_be_used_is_refused_in_one_line(cortex: Any, schema: str, words: str) -> None:
    _shapes()
    cortex("batch", "t.csv", *ASK, *SIM, "--schema", schema, "-o", "o.csv").refused(f"--schema {schema}: ", words)


def test_a_type_without_a_name_is_refused() -> None:
    with pytest.raises(SetupError, match="is no class, which a later run would find by its name: give a class"):
        public.batch(["a"], "{{text}}", schema=dict[str, int], model="sim")


FLOW = """
import cortex
import msgspec

class Point(msgspec.Struct):
    x: int

@cortex.flow
async def asks(ctx, places: int = 1):
    for place in range(places):
        await ctx.ask(f"Where is {place}?", returns=Point)
"""


def _prompts(cortex: Any) -> list[str]:
    assert cortex("export", "f", "-o", "calls.jsonl", "--overwrite").code == 0
    return [json.loads(line)["prompt"] for line in Path("calls.jsonl").read_text().splitlines()]


def test_a_flow_asks_by_structured_outputs_as_a_table_does(cortex: Any) -> None:
    Path("flow.py").write_text(FLOW)
    assert cortex("run", "flow.py", "--model", "sim", "--job", "f").code == 0
    assert _prompts(cortex) == ["Where is 0?"]
    seen = cortex("inspect", "f", "goal:2").out
    assert '"output_config":{"format":{"schema":{"$defs":{"Point":{"additionalProperties":false' in seen


def test_a_flow_that_began_in_words_goes_on_in_words_and_pays_no_answer_again(cortex: Any) -> None:
    """As a job of release 0.1.0: the replies that it has paid for are found by their requests."""
    Path("flow.py").write_text(FLOW)
    run = ("run", "flow.py", "--model", "sim", "--job", "f", "-p")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actors.api.session.structured_lanes", lambda found: ())
        assert cortex(*run, "places=1").code == 0
    done = cortex(*run, "places=2")
    assert "3 calls, 1 of them remembered, of which 1 call before" in done.err, done.err
    assert all("Answer with JSON alone" in prompt for prompt in _prompts(cortex))
    assert cortex(*run, "places=2", "--fresh").code == 0
    assert _prompts(cortex) == ["Where is 0?", "Where is 1?"]


def test_a_model_object_is_asked_in_words() -> None:
    asked: list[str] = []

    class Point(pydantic.BaseModel):
        x: int

    @public.flow
    async def asks(ctx: Any) -> Any:
        return await ctx.ask("Where?", returns=Point)

    def model(prompt: str) -> str:
        asked.append(prompt)
        return '{"x": 1}'

    assert public.run(asks(), model=model, progress=False).answer == {"x": 1}
    assert "Answer with JSON alone that fits this JSON schema" in asked[0]


@pytest.mark.parametrize(
    ("field", "options", "words"),
    [
        ({"type": "object", "additionalProperties": {"type": "integer"}}, (), True),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, ("--schema-as", "format"), False),
        ({"type": "integer"}, (), False),
        ({"type": ["integer", "null"]}, (), False),
        ({}, (), True),
    ],
)
def test_a_schema_that_structured_outputs_do_not_express_is_sent_in_words(
    cortex: Any, field: Any, options: tuple[str, ...], words: bool
) -> None:
    """Structured outputs close each object: a map would be empty in every answer."""
    table(Path("t.csv"), 1)
    Path("s.json").write_text(json.dumps({"type": "object", "properties": {"n": field}}))
    done = cortex("batch", "t.csv", *ASK, *SIM, "--schema", "s.json", *options, "-o", "o.csv", "--job", "f")
    assert ("--schema s.json is sent in words: structured outputs would not allow all" in done.err) == words
    asked = cortex("inspect", "f", "goal:1").out
    assert ("Answer with JSON alone" in asked, "output_config" in asked) == (words, not words)
