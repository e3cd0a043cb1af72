"""``table``: what is asked of a row, what becomes of its answer; a replay comes to the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from cortex.journal import codec
from cortex.loop.step import step
from cortex.programs.table import META, Table, renamed, twice_named
from cortex.state import commands, events
from cortex.state.state import State
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.reply import Reply, Usage
from policies.estimates.price import parse_price

SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
PRICE = parse_price("input=1000,output=2000")


class Played:
    """A job in K alone: its turns, its commands, and what comes of replaying them."""

    def __init__(self, program: Table, price: Any = PRICE, limits: Limits | None = None, **route: Any) -> None:
        self.program = program
        self.terms = JobTerms(
            job="j", program="table", params_json=b"{}", fingerprint="f", streams=True, limits=limits or Limits(),
            route=Route(endpoint="https://x", model="m", price=price, **route),
        )  # fmt: skip
        self.k = State(terms=self.terms)
        self.turns: list[events.Turn] = []
        self.calls: list[commands.Call] = []
        self.rows: list[dict[str, Any]] = []
        self.take(events.Opened(self.terms, 1), events.PermitsGranted(10))

    def take(self, *batch: events.Event) -> None:
        turn = events.Turn(float(len(self.turns)), (batch,))
        self.turns.append(turn)
        for command in step(self.k, self.program, turn):
            if isinstance(command, commands.Call):
                self.calls.append(command)
            elif isinstance(command, commands.EmitResult):
                self.rows.append(json.loads(command.value))

    def feed(self, *rows: events.Row) -> None:
        self.take(events.RowsRead(rows, 0, 1, True))

    def answer(self, text: str, stop_reason: str = "end_turn", remembered: bool = False, **fields: Any) -> None:
        call = self.calls[-1]
        content = [fields] if fields else [{"type": "text", "text": text}]
        body = msgspec.json.encode({"content": content})
        reply = Reply(body, stop_reason, "m-1", Usage(10, 3))
        if remembered:
            self.take(events.ReplyRecalled(call.goal, call.sample, call.hash, reply))
        else:
            self.take(events.Answered(call.goal, call.sample, call.attempt, call.hash, reply, 0.25))

    def asked(self) -> dict[str, Any]:
        return dict(json.loads(self.calls[-1].body))

    def replayed(self) -> bytes:
        return codec.encode_state(codec.replay(None, self.turns, self.program))


def row(**values: Any) -> events.Row:
    return events.Row(str(values["id"]), msgspec.json.encode(values))


def test_a_row_is_asked_and_its_answer_is_a_flat_row() -> None:
    played = Played(Table(prompt="Label: {{text}}", system="Be brief.", id="id", with_input=True, meta=True))
    played.feed(row(id=7, text="It crashes", team="a"))
    assert played.asked() == {
        "max_tokens": 1024, "messages": [{"role": "user", "content": "Label: It crashes"}], "model": "m",
        "system": "Be brief.",
    }  # fmt: skip
    assert played.calls[0].sample == "7"
    played.answer("bug")
    assert played.rows == [
        {"id": 7, "text": "It crashes", "team": "a", "answer": "bug", "error": None, "kind": "succeeded",
         "stop_reason": "end_turn", "model": "m-1", "attempts": 1, "latency_s": 0.25, "input_tokens": 10,
         "output_tokens": 3, "cost_usd": 0.016, "reused": False},
    ]  # fmt: skip
    assert played.k.outcome == "complete"
    assert played.k.took is None
    assert played.replayed() == codec.encode_state(played.k)


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "é"])
def test_the_id_column_has_any_name(name: str) -> None:
    played = Played(Table(prompt="{{text}}", id=name))
    played.feed(events.Row("7", msgspec.json.encode({"text": "x", name: 7})))
    played.answer("y")
    assert played.rows == [{name: 7, "answer": "y", "error": None}]


def test_what_was_remembered_costs_nothing() -> None:
    played = Played(Table(prompt="{{id}}", id="id", meta=True))
    played.feed(row(id="a"))
    played.answer("x", remembered=True)
    found = played.rows[0]
    assert (found["reused"], found["cost_usd"], found["attempts"], found["latency_s"]) == (True, 0.0, 0, None)


def test_an_answer_that_does_not_fit_is_asked_for_once_more_with_the_error() -> None:
    played = Played(Table(prompt="{{text}}", id="id", schema=SCHEMA, meta=True))
    played.feed(row(id="a", text="x"))
    assert played.asked()["output_config"]["format"]["type"] == "json_schema"
    played.answer('{"n": "no"}')
    assert (played.rows, played.calls[1].sample, played.k.tally.failures) == ([], "a\x1f1", {"malformed": 1})
    assert played.asked()["messages"][0]["content"] == (
        "x\n\nAn earlier answer to this was refused: Expected `int`, got `str` - at `$.n`"
    )
    assert played.calls[1].hash != played.calls[0].hash
    played.answer('{"n": 3}')
    found = played.rows[0]
    assert (found["n"], found["answer"], found["attempts"], found["cost_usd"]) == (3, None, 2, 0.032)
    assert (found["input_tokens"], found["output_tokens"]) == (20, 6)
    assert played.replayed() == codec.encode_state(played.k)


def test_one_that_never_fits_has_failed_and_still_holds_its_text() -> None:
    played = Played(Table(prompt="{{text}}", id="id", schema=SCHEMA))
    played.feed(row(id="a", text="x"))
    played.answer("no JSON")
    played.answer('{"n": 3', stop_reason="max_tokens")
    assert played.rows == [
        {"id": "a", "n": None, "answer": '{"n": 3', "error":
         "malformed: it was cut at max_tokens (3); Input data was truncated"},
    ]  # fmt: skip
    assert (played.k.tally.failed, played.k.tally.failed_for_good) == (1, {"malformed": 1})
    assert played.replayed() == codec.encode_state(played.k)


def test_a_refusal_is_a_failed_row_and_is_not_asked_again() -> None:
    for schema in ("", SCHEMA):
        played = Played(Table(prompt="{{text}}", id="id", schema=schema))
        played.feed(row(id="a", text="x"))
        played.answer("I cannot", stop_reason="refusal")
        assert (len(played.calls), played.rows[0]["error"], played.rows[0]["answer"]) == (
            1, "refused: the model declined", "I cannot",
        )  # fmt: skip


def test_as_a_tool_and_in_words() -> None:
    played = Played(Table(prompt="{{text}}", id="id", schema=SCHEMA, schema_as="tool"))
    played.feed(row(id="a", text="x"))
    asked = played.asked()
    assert (asked["tool_choice"], asked["tools"][0]["input_schema"]["additionalProperties"]) == (
        {"type": "tool", "name": "answer"}, False,
    )  # fmt: skip
    played.answer("", "tool_use", type="tool_use", id="u", name="answer", input={"n": 4})
    assert played.rows[0]["n"] == 4
    played = Played(Table(prompt="{{text}}", id="id", schema=SCHEMA, schema_as="prompt"))
    played.feed(row(id="a", text="x"))
    assert set(played.asked()) == {"max_tokens", "messages", "model"}
    assert played.asked()["messages"][0]["content"].endswith(f"fits this JSON schema:\n{SCHEMA}")
    played.answer('```json\n{"n": 5}\n```')
    assert played.rows[0]["n"] == 5


def test_a_whole_request_keeps_what_it_says() -> None:
    request = {
        "max_tokens": 9, "model": "own", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        "output_config": {"effort": "low"},
    }  # fmt: skip
    played = Played(Table(id="custom_id", schema=SCHEMA))
    played.feed(events.Row("a", msgspec.json.encode(request), 9))
    assert (played.asked()["model"], played.asked()["max_tokens"]) == ("own", 9)
    assert list(played.asked()["output_config"]) == ["effort", "format"]
    played.answer("?")
    assert played.asked()["messages"][0]["content"][1]["text"].startswith("An earlier answer to this was refused")


@pytest.mark.parametrize("meta", [True, False])
def test_a_row_that_was_refused_before_has_its_result_at_once(meta: bool) -> None:
    played = Played(Table(prompt="{{text}}", id="id", with_input=True, meta=meta))
    played.feed(events.Row("7", b'{"id":7,"text":""}', refusal="there is nothing to ask"))
    found = played.rows[0]
    assert (found["id"], found["answer"], found["error"]) == (7, None, "rejected: there is nothing to ask")
    assert [name for name in META if name in found] == (list(META) if meta else [])
    assert (played.calls, played.k.outcome) == ([], "complete")


@pytest.mark.parametrize("meta", [False, True])
def test_the_own_columns_of_the_results_have_the_names_that_were_given(meta: bool) -> None:
    """The column of the input that is called alike keeps its name and its value."""
    for names in (renamed("said", ""), renamed("", "llm_"), renamed("said", "llm_"), renamed("error", "llm_")):
        played = Played(Table(prompt="{{answer}}", id="id", with_input=True, meta=meta, renamed=names, on_cut="fail"))
        given = {"id": 1, "answer": "It crashes"} | {name: f"own {name}" for name in META}
        played.feed(row(**given), row(**given | {"id": 2}))
        played.answer("bug")
        played.calls.reverse()
        played.answer("", stop_reason="max_tokens")
        name_of = {name: dict(names or ()).get(name, name) for name in ("answer", "error", *META)}
        for line, said, kind in zip(played.rows, ("bug", ""), ("succeeded", "cut"), strict=True):
            kept = {name: value for name, value in given.items() if name not in name_of.values() and name != "id"}
            assert line | kept == line
            assert line[name_of["answer"]] == said
            assert (line[name_of["error"]] is None) == (kind == "succeeded")
            if meta:
                assert (line[name_of["kind"]], line[name_of["attempts"]]) == (kind, 1)


def test_a_table_without_new_names_has_the_parameters_of_release_0_1_0() -> None:
    assert renamed("", "") is msgspec.UNSET
    assert b"renamed" not in msgspec.json.encode(Table(renamed=renamed("", "")))


def test_a_name_of_two_columns_is_found_with_the_option_that_changes_it() -> None:
    schema = json.dumps({"type": "object", "properties": {"answer": {}, "n": {}, "kind": {}}})
    for program, twice in (
        (Table(id="id", schema=SCHEMA), ("", "")),
        (Table(id="n", schema=SCHEMA), ("n", "")),
        (Table(id="answer"), ("answer", "--answer-as NAME")),
        (Table(id="error"), ("error", "--columns-prefix TEXT")),
        (Table(id="id", schema=SCHEMA, renamed=renamed("n", "")), ("n", "--answer-as NAME")),
        (Table(id="id", renamed=renamed("error", "")), ("error", "--answer-as NAME")),
        (Table(id="id", schema=schema, renamed=renamed("said", "")), ("", "")),
        (Table(id="id", schema=schema, meta=True, renamed=renamed("said", "")), ("kind", "--columns-prefix TEXT")),
        (Table(id="id", schema=schema, meta=True, renamed=renamed("", "x_")), ("", "")),
    ):
        assert twice_named(program) == twice, program
