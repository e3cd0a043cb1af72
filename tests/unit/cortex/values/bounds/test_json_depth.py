"""Depth of JSON: judged without a decoder, and one K whatever stack a journal is read on."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.cli.jobs.programs import _json_or_text
from actors.cli.options import job_file
from actors.cli.remote.rayjob_render import _cluster_spec
from actors.common.errors import CommandError
from actors.files.batch_request import InvalidRow, RowRules
from actors.files.json_rows import read_row
from actors.ports.model import shallow
from actors.programs import saved
from actors.programs.saved import SavedProgramError
from actors.programs.schemas import answer_schema
from cortex.control.tasks import CommandRefused
from cortex.control.transforms import _fields
from cortex.flows.answer_types import AnswerType
from cortex.journal import codec
from cortex.state import events
from cortex.state.changes import Change, Resolve
from cortex.state.state import Goal, State
from cortex.values.bounds.json_depth import JSON_DEPTH_MAX, too_deep
from cortex.values.reply import Malformed, Reply, as_json
from cortex.values.schema import SchemaError, decoded
from policies.failures.failure import Failure, FailureKind
from policies.failures.retry import RetryPolicy, may_retry
from tests.support.state_machine_harness import Flat, Stage, reply

DEPTHS = (1, JSON_DEPTH_MAX - 1, JSON_DEPTH_MAX, JSON_DEPTH_MAX + 1, 300, 700, 950, 20_000)
SHAPES: dict[str, Callable[[int], str]] = {
    "lists": lambda depth: "[" * depth + "]" * depth,
    "objects": lambda depth: '{"a":' * depth + "1" + "}" * depth,
    "both": lambda depth: '[{"a":' * (depth // 2) + "[" * (depth % 2) + "]" * (depth % 2) + "}]" * (depth // 2),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("depth", DEPTHS)
def test_the_depth_of_a_document_is_judged_exactly(shape: str, depth: int) -> None:
    text = SHAPES[shape](depth)
    assert too_deep(text) is too_deep(text.encode()) is (depth > JSON_DEPTH_MAX)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps("[" * 5_000), json.dumps(['"[' * 500, "\\[" * 500]), json.dumps({"{" * 300: ["é[" * 300]}),
        "[" + ",".join(["[{}]"] * 2_000) + "]", "", "]" * 500, "\ud83d" + "{}" * 300,
    ],
)  # fmt: skip
def test_brackets_that_do_not_nest_are_no_depth(text: str) -> None:
    assert not too_deep(text)


@pytest.mark.parametrize("unit", ["A", "\\n", "a\\\\"])
def test_a_long_string_is_judged_without_memory_for_each_character(unit: str) -> None:
    """A picture in base64 of 1 MB took 120 MB: ``tracemalloc`` sees what a pattern keeps for its way back."""
    text = b"[" + b"[]," * (JSON_DEPTH_MAX + 1) + b'"' + unit.encode() * (1_000_000 // len(unit)) + b'"]'
    tracemalloc.start()
    try:
        assert not too_deep(text)
        assert tracemalloc.get_traced_memory()[1] < 2_500_000  # two copies without brackets
    finally:
        tracemalloc.stop()


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)))
def test_what_is_said_is_the_depth_of_the_value(value: Any) -> None:
    def depth(of: Any) -> int:
        inside = of.values() if isinstance(of, dict) else of if isinstance(of, list) else None
        return 0 if inside is None else 1 + max(map(depth, inside), default=0)

    for wrapped in (0, JSON_DEPTH_MAX - 2, JSON_DEPTH_MAX):
        text = "[" * wrapped + json.dumps(value) + "]" * wrapped
        assert too_deep(text) is (depth(value) + wrapped > JSON_DEPTH_MAX)


# -- the doors -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("depth", (JSON_DEPTH_MAX + 1, 950, 20_000))
def test_each_door_refuses_what_is_too_deep_in_one_line(depth: int) -> None:
    text = SHAPES["lists"](depth)
    line = f'{{"custom_id":"a","params":{{"model":"m","max_tokens":1,"messages":{text}}}}}'.encode()
    for refuses in (
        lambda: RowRules().read(line), lambda: read_row(f'{{"id":1,"a":{text}}}'.encode()),
        lambda: decoded(text), lambda: decoded(f'see {{"a":{text}}} here', in_words=True),
        lambda: as_json(reply(text), Any), lambda: AnswerType(list).read(reply(text)),
    ):  # fmt: skip
        with pytest.raises((InvalidRow, Malformed, CommandRefused), match="nested too deeply") as refused:
            refuses()
        assert "\n" not in str(refused.value)
    assert _fields(text, ["a"]) == text
    body = f'{{"content":[{{"type":"text","text":"a"}},{{"type":"other","x":{text}}}]}}'.encode()
    found = shallow(Reply(body, "end_turn", "m", reply().usage))
    assert isinstance(found, Failure) and found.kind is FailureKind.UNREADABLE
    assert not may_retry(RetryPolicy(), found, 2, 0, 10**6, paid=2).again, "an answer that came is paid twice at most"
    assert shallow(reply(text)).body == reply(text).body, "the text of a message is no depth of its own"


@pytest.mark.parametrize("depth", (JSON_DEPTH_MAX + 1, 3_000, 20_000))
def test_each_door_of_the_command_line_does_too(tmp_path: Path, depth: int) -> None:
    text = SHAPES["objects"](depth)
    (tmp_path / "s.json").write_text(text)
    given: dict[str, Any] = {}
    for _ in range(depth):
        given = {"properties": given}
    ring: dict[str, Any] = {}
    ring |= {"properties": {"a": ring, "b": ring}}
    doors: list[tuple[type[Exception], Callable[[], object]]] = [
        (SchemaError, lambda: answer_schema(str(tmp_path / "s.json"))), (SchemaError, lambda: answer_schema(given)),
        (SchemaError, lambda: answer_schema(ring)),
        (CommandError, lambda: _json_or_text("x", text)),
    ]  # fmt: skip
    if depth > 1_000:  # these recurse themselves, and what they read is refused by its type
        (tmp_path / "job.toml").write_text(f"input = {SHAPES['lists'](depth)}")
        (tmp_path / "c.yaml").write_text(f"spec: {SHAPES['lists'](depth)}")
        (tmp_path / "p.toml").write_text(f"form = {SHAPES['lists'](depth)}")
        (tmp_path / "p.tests.jsonl").write_text(f'{{"version":1,"context":{text}}}')
        doors += [
            (CommandError, lambda: job_file.read(str(tmp_path / "job.toml"), {})),
            (CommandError, lambda: _cluster_spec(str(tmp_path / "c.yaml"))),
            (SavedProgramError, lambda: saved.read(tmp_path / "p.toml")),
            (SavedProgramError, lambda: saved.cases(tmp_path / "p.toml")),
        ]
    for kind, refuses in doors:
        with pytest.raises(kind) as refused:
            refuses()
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


# -- one journal, one K ----------------------------------------------------------------------------------------------


class Reads(Flat, frozen=True):
    """Program whose goals read their replies as JSON, in each way that the core has."""

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        ways = (lambda: decoded(reply.text, in_words=True), lambda: as_json(reply, Any), lambda: AnswerType(list).read(reply))
        value = ways[goal.id % 3]()
        yield Resolve(goal, json.dumps(value)[:50])


def replayed(turns: list[events.Turn], program: Reads, headroom: int) -> bytes:
    """K after a replay on a stack with room for so many calls."""
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + headroom)
    try:
        return codec.encode_state(codec.replay(None, turns, program))
    finally:
        sys.setrecursionlimit(before)


def test_one_journal_gives_one_k_at_any_recursion_limit() -> None:
    bench = Stage(Reads(texts=tuple(map(str, range(30)))), permits=30)
    texts = [SHAPES[shape](depth) for depth in (1, 60, 90, 100, 101, 300, 700, 820, 950) for shape in SHAPES]
    for call, text in zip(list(bench.calls.values()), texts, strict=False):
        bench.turn(bench.answered(call, text))
    bench.answer_all("[1]")
    found = {replayed(bench.turns, bench.program, headroom) for headroom in (350, 450, 700, 850, 1_000, 3_000)}
    assert found == {codec.encode_state(bench.k)}
    assert bench.k.tally.failures["malformed"] > 10 and bench.k.tally.succeeded == 30
