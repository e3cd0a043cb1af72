"""``embed``: which rows are asked together, what becomes of their vectors and of a request that is refused."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import msgspec
import pytest

from cortex.journal import codec
from cortex.loop.step import step
from cortex.programs.embed import BYTES_MAX, Embed
from cortex.programs.parts.embedding import packed
from cortex.state import commands, events
from cortex.state.state import State, Status
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure, FailureKind


class Played:
    """A job in K alone: its turns, its calls, and what comes of replaying them."""

    def __init__(self, permits: int = 10, ordered: bool = False, limits: Limits | None = None, **fields: Any) -> None:
        self.program = Embed(prompt="{{text}}", id="id", ordered=ordered, **{"rows_max": 4, **fields})
        self.terms = JobTerms(
            job="j", program="embed", params_json=b"{}", fingerprint="f", streams=True, limits=limits or Limits(),
            route=Route(endpoint="https://x", model="m", context_window=300_000),
        )  # fmt: skip
        self.k = State(terms=self.terms)
        self.turns: list[events.Turn] = []
        self.calls: list[commands.Call] = []
        self.rows: list[dict[str, Any]] = []
        self._at = 0
        self.take(events.Opened(self.terms, 1), events.PermitsGranted(permits))

    def take(self, *batch: events.Event) -> None:
        turn = events.Turn(float(len(self.turns)), (batch,))
        self.turns.append(turn)
        for command in step(self.k, self.program, turn):
            if isinstance(command, commands.Call):
                self.calls.append(command)
            elif isinstance(command, commands.EmitResult):
                self.rows.append(json.loads(command.value))

    def feed(self, *texts: str, ended: bool = True) -> None:
        rows = [events.Row(f"r{self._at + n}", msgspec.json.encode({"id": f"r{self._at + n}", "text": text}))
                for n, text in enumerate(texts)]  # fmt: skip
        start, self._at = self._at, self._at + len(texts)
        self.take(events.RowsRead(tuple(rows), start, self._at, ended))

    def asked(self) -> list[list[str]]:
        return [json.loads(call.body)["input"] for call in self.calls]

    def answer(self, at: int, vectors: int | None = None) -> None:
        call = self.calls[at]
        texts = json.loads(call.body)["input"]
        content = [{"type": "text", "text": packed([float(len(text)), 1.0])} for text in texts]
        body = msgspec.json.encode({"content": content if vectors is None else content[:vectors]})
        reply = Reply(body, "end_turn", "m", Usage(10, 0))
        self.take(events.Answered(call.goal, call.sample, call.attempt, call.hash, reply, 0.25))

    def refuse(self, at: int, kind: FailureKind = FailureKind.REJECTED, message: str = "input 3 is too long") -> None:
        call = self.calls[at]
        self.take(events.AttemptFailed(call.goal, call.sample, call.attempt, Failure(kind, message, status=400)))

    def outcome(self) -> dict[str, Any]:
        return {row["id"]: row["error"] or numbers(row["answer"])[0] for row in self.rows}

    def same_when_replayed(self) -> bool:
        return codec.encode_state(codec.replay(None, self.turns, self.program)) == codec.encode_state(self.k)


def numbers(vector: str) -> tuple[float, ...]:
    content = base64.b64decode(vector)
    return struct.unpack(f"<{len(content) // 4}f", content)


def test_rows_of_a_block_are_asked_together_and_each_gets_its_vector() -> None:
    played = Played()
    played.feed("a", "bb", "ccc", "dddd", "eeeee")
    assert played.asked() == [["a", "bb", "ccc", "dddd"], ["eeeee"]]
    assert [(call.sample, call.output_tokens_max) for call in played.calls] == [("r0", 1), ("r4", 1)]
    assert json.loads(played.calls[0].body)["model"] == "m"
    played.answer(1)
    played.answer(0)
    assert played.outcome() == {"r0": 1.0, "r1": 2.0, "r2": 3.0, "r3": 4.0, "r4": 5.0}
    assert (played.k.outcome, played.k.tally.succeeded, played.k.live) == ("complete", 5, 0)
    assert played.same_when_replayed()


def test_a_block_waits_for_its_rows_so_that_the_same_rows_are_always_asked_together() -> None:
    played = Played()
    played.feed("a", "b", "c", ended=False)
    assert (played.asked(), played.k.outcome) == ([], "")
    played.feed("d", "e", ended=False)
    assert played.asked() == [["a", "b", "c", "d"]]
    played.feed("f")
    assert played.asked()[1:] == [["e", "f"]]


def test_results_in_the_order_of_the_input() -> None:
    played = Played(ordered=True)
    played.feed("a", "b", "c", "d", "e")
    played.answer(1)
    assert played.rows == []
    played.answer(0)
    assert [row["id"] for row in played.rows] == ["r0", "r1", "r2", "r3", "r4"]


def test_bytes_bound_a_request_too() -> None:
    played = Played()
    long = "x" * (BYTES_MAX // 2)
    played.feed(long, long, "c", "d")
    assert [len(texts) for texts in played.asked()] == [1, 3]


def test_a_refused_request_is_asked_in_halves_until_the_row_stands_alone() -> None:
    played = Played()
    played.feed("a", "b", "bad", "d")
    played.refuse(0)
    assert played.asked()[1:] == [["a", "b"], ["bad", "d"]]
    played.answer(1)
    played.refuse(2)
    assert played.asked()[3:] == [["bad"], ["d"]]
    played.refuse(3)
    played.answer(4)
    assert played.outcome() == {"r0": 1.0, "r1": 1.0, "r2": "rejected: input 3 is too long", "r3": 1.0}
    assert played.k.tally.failed_for_good == {"rejected": 1}
    assert played.same_when_replayed()


def test_another_failure_is_that_of_all_rows_and_each_may_be_asked_again() -> None:
    played = Played(limits=Limits())
    played.feed("a", "b")
    played.answer(0, vectors=1)
    errors = {row["error"].partition(":")[0] for row in played.rows}
    assert (errors, played.k.tally.failed, played.k.tally.failed_for_good) == ({"malformed"}, 2, {"malformed": 2})
    assert played.same_when_replayed()


def test_a_group_that_is_asked_again_is_the_same_question() -> None:
    played = Played()
    played.feed("a", "b")
    played.refuse(0, FailureKind.TRANSIENT, "lost")
    assert [goal.status for goal in played.k.goals.values()] == [Status.OPEN, Status.WAITING]
    played.turns.append(events.Turn(1e6, ((events.PermitsGranted(10),),)))
    for command in step(played.k, played.program, played.turns[-1]):
        if isinstance(command, commands.Call):
            played.calls.append(command)
    assert played.asked() == [["a", "b"]] * 2
    assert played.calls[0].hash == played.calls[1].hash


def test_a_row_without_text_is_refused_unsent() -> None:
    played = Played()
    played.feed("a", " ", "c")
    assert played.asked() == [["a", "c"]]
    assert played.outcome()["r1"] == "rejected: the text of the row is empty"


def test_fewer_permits_than_groups_lose_no_row() -> None:
    played = Played(permits=1)
    played.feed(*"abcdefghijkl")
    for at in range(3):
        assert len(played.calls) == at + 1
        played.answer(at)
    assert sorted(played.outcome()) == sorted(f"r{n}" for n in range(12))
    assert played.k.outcome == "complete"


@pytest.mark.parametrize(("dimensions", "fields"), [(msgspec.UNSET, {"input", "model"}), (8, {"dimensions", "input", "model"})])
def test_the_request(dimensions: Any, fields: set[str]) -> None:
    played = Played(dimensions=dimensions)
    played.feed("a")
    assert set(json.loads(played.calls[0].body)) == fields
