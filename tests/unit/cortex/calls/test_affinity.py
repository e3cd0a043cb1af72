"""Calls that share a long beginning go to the server that was asked it, in K."""

from __future__ import annotations

import msgspec
import pytest

from cortex.admission.permits import reroute
from cortex.calls import affinity
from cortex.calls.affinity import LONGEST, SHORTEST, beginnings
from cortex.journal import codec
from cortex.programs.table import Table
from cortex.state import events
from cortex.values.limits import Limits, Route
from tests.support.state_machine_harness import Flat, Stage

BOUND = Limits(output_tokens_max=10)
PEERS = (Route(endpoint="one", model="m"), Route(endpoint="two", model="m"))


def document(name: str, question: int) -> str:
    return f"{name} {'word ' * 600}{question}"


def stage_of(*texts: str, grants: tuple[int, ...], **more: object) -> Stage:
    """A job at three servers, or at its own and a fallback."""
    stage = Stage(Flat(texts=texts), BOUND, permits=0, **{"fallbacks": PEERS, "peers": 2, **more})  # type: ignore[arg-type]
    stage.turn(*(events.PermitsGranted(permits, route=place) for place, permits in enumerate(grants)))
    return stage


def at(stage: Stage) -> dict[int, int]:
    """Server of each call in flight, by goal."""
    return {call.goal: call.route for call in stage.calls.values()}


ROWS = [document(name, question) for question in range(3) for name in ("a", "b", "c")]


def test_a_server_that_becomes_free_takes_a_row_of_the_document_that_it_had() -> None:
    stage = stage_of(*ROWS, grants=(1, 1, 1))
    assert at(stage) == {1: 0, 2: 1, 3: 2}
    stage.answer(goal=3)
    assert at(stage)[6] == 2, "the third row of the next three, not the first"
    stage.answer(goal=1)
    assert at(stage)[4] == 0
    for goal in (2, 4, 5, 6, 7, 8, 9):
        stage.answer(goal=goal)
    assert (stage.k.outcome, stage.k.tally.answered) == ("complete", 9)


def test_rows_without_a_long_beginning_are_asked_in_their_order() -> None:
    stage = stage_of(*(f"row {number}" for number in range(6)), grants=(1, 1, 1))
    stage.answer(goal=3)
    assert at(stage)[4] == 2
    assert stage.k.holders == {}


def test_no_server_waits_for_rows_of_its_own() -> None:
    stage = stage_of(*(document("a", number) for number in range(6)), grants=(2, 1, 1))
    assert sorted(at(stage).values()) == [0, 0, 1, 2]


def test_a_row_does_not_wait_for_a_server_that_takes_no_calls() -> None:
    rows = [document(name, number) for number, name in enumerate("abcad")]
    stage = stage_of(*rows, grants=(1, 1, 1))
    assert at(stage) == {1: 0, 2: 1, 3: 2}
    stage.turn(events.PermitsGranted(0, route=0))
    stage.answer(goal=2)
    assert at(stage) == {1: 0, 3: 2, 4: 1}, "the row of the first document, before that of another one"


def test_a_row_waits_for_its_server_while_others_may_go() -> None:
    rows = [document(name, number) for number, name in enumerate("abcad")]
    stage = stage_of(*rows, grants=(1, 1, 1))
    stage.answer(goal=2)
    assert at(stage) == {1: 0, 3: 2, 5: 1}
    stage.answer(goal=3)
    assert at(stage) == {1: 0, 4: 2, 5: 1}, "there is no other row"


def test_a_job_of_one_server_and_its_fallbacks_keeps_its_order() -> None:
    stage = stage_of(*ROWS, grants=(1, 1), fallbacks=PEERS[:1], peers=0)
    stage.answer(goal=1)
    assert at(stage) == {2: 1, 3: 0}
    assert stage.k.holders == {}


def test_what_is_known_is_bounded_and_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "KEPT_MAX", 3)
    stage = stage_of(*(document(name, 0) for name in "abcdef"), grants=(2, 2, 2))
    assert len(stage.k.holders) == 3
    again = codec.decode_state(codec.encode_state(stage.k))
    assert list(again.holders.items()) == list(stage.k.holders.items()), "with their order"
    reroute(stage.k, PEERS[:1], 1)
    assert stage.k.holders != {}, "a call is in flight at the server that would go"
    for goal in range(1, 7):
        stage.answer(goal=goal)
    reroute(stage.k, PEERS[1:], 1)
    assert stage.k.holders == {}, "servers have other places now"


def test_a_prompt_has_the_beginnings_that_it_shares() -> None:
    long = "é" + "x" * LONGEST
    assert len(beginnings(long)) == 5
    assert beginnings(long[:5_000]) == beginnings(long)[-2:] == beginnings(long[:5_000].encode())
    assert beginnings("x" * (SHORTEST - 1)) == ()
    assert len(beginnings(msgspec.json.encode({"messages": "x" * SHORTEST}))) == 1


def test_what_is_kept_of_a_prompt_that_was_looked_at_is_its_beginning_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that had whole prompts as its keys would hold hundreds of them, of megabytes each."""
    looked_at: list[int] = []
    hashed = affinity.beginnings
    monkeypatch.setattr(affinity, "beginnings", lambda text: looked_at.append(len(text)) or hashed(text))
    stage_of(*(f"{number} {'word ' * LONGEST}" for number in range(2)), grants=(1, 1, 1))
    assert set(looked_at) == {LONGEST}


def test_a_prompt_is_looked_at_once_in_a_step_and_none_behind_the_last_call_that_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[int] = []
    named = affinity.beginnings_of
    monkeypatch.setattr(affinity, "beginnings_of", lambda change: looked_at.append(change.goal.id) or named(change))
    rows = [document(name, question) for name in "abc" for question in range(40)]
    stage = stage_of(*rows, grants=(1, 1, 1))
    twice = 2  # the harness takes each turn twice, the second time as a replay does
    assert looked_at == twice * [1, 2, 3], "at first only the calls that are sent"
    for _ in range(20):
        looked_at.clear()
        stage.answer(goal=next(iter(at(stage))))
        assert len(looked_at) == twice, "the next row of the document stands in front"
    looked_at.clear()
    scattered = stage_of(*(document(f"{number}", 0) for number in range(200)), grants=(1, 1, 1))
    for _ in range(20):
        looked_at.clear()
        scattered.answer(goal=next(iter(at(scattered))))
        assert len(looked_at) == twice * len(set(looked_at)) <= twice * (1 + affinity.WINDOW)


def test_the_rows_of_a_table_are_put_together_from_pieces_at_several_servers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness has its second program decide aloud, which takes the long way: both must ask the same."""
    whole: list[object] = []
    request = Table.request
    monkeypatch.setattr(Table, "request", lambda self, *given: whole.append(self) or request(self, *given))
    table = Table(prompt="{{text}}", system="Be brief.", id="id")
    stage = Stage(table, BOUND, permits=0, fallbacks=PEERS, peers=2, streams=True)
    stage.turn(*(events.PermitsGranted(2, route=place) for place in range(3)))
    rows = [events.Row(str(n), msgspec.json.encode({"id": n, "text": document("abc"[n % 3], n)})) for n in range(120)]
    stage.turn(events.RowsRead(tuple(rows), 0, len(rows), True))
    for _ in range(60):
        stage.answer(goal=next(iter(at(stage))))
    assert not any(each is table for each in whole)
    assert any(each is stage.other for each in whole)
