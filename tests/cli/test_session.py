"""What a run does before it sends anything: whose job, which bounds, whether a model is needed at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import cortex
from actors.api.session import Session
from actors.driver.driver import Driver
from actors.files.errors import SourceError
from actors.files.sources.line_source import LineSource
from actors.jobs.limit_options import bounded
from actors.jobs.spec import JobSpec
from actors.routing.model_factory import ConnectionSpec
from actors.routing.own_server import connections_max
from actors.routing.routes import ModelSpec, ResolvedRoute, SetupError
from cortex.programs.batch import Batch
from cortex.values.limits import Limits, Route
from policies.failures.timeout import attempt_timeout_s


class Label(cortex.Program, frozen=True):
    texts: tuple[str, ...]

    def begin(self, k: cortex.State) -> Any:
        for text in self.texts:
            yield cortex.Goal("label", text)

    def select(self, k: cortex.State) -> Any:
        for goal in k.open("label"):
            text = f"Answer with one of: bug, praise.\n\n{goal.value}"
            yield cortex.Ask(goal, cortex.Prompt("plain", (cortex.Part(cortex.Role.GOAL, text),)))

    def absorb(self, k: cortex.State, goal: cortex.Goal, reply: cortex.Reply) -> Any:
        yield cortex.Resolve(goal, cortex.as_choice(reply, ("bug", "praise")))


def test_a_destination_may_take_fewer_calls_at_once(tmp_path):
    session = Session(JobSpec(program=Batch(), limits=Limits(concurrency=100), state=str(tmp_path)), {})
    route, connection = Route(endpoint="here", model="m"), ConnectionSpec(endpoint="here")
    assert session.terms(ResolvedRoute(route, connection), "inline").limits.concurrency == 100
    narrow = ResolvedRoute(route, connection, concurrency_max=8)
    assert session.terms(narrow, "inline").limits.concurrency == 8
    few = Session(JobSpec(program=Batch(), limits=Limits(concurrency=3), state=str(tmp_path)), {})
    assert few.terms(narrow, "inline").limits.concurrency == 3


@pytest.mark.parametrize(
    ("endpoint", "given", "concurrency", "first_byte_s"),
    [
        ("http://gpu:8000", False, "most", 300.0),
        ("http://gpu:8000", True, 100, 300.0),  # a ceiling that the user gives stays one, also the usual number
        ("https://api.anthropic.com", False, 100, 60.0),
        ("sim", False, 100, 60.0),
    ],
)
def test_a_server_of_the_users_own_has_no_usual_ceiling(tmp_path, endpoint, given, concurrency, first_byte_s):
    order = JobSpec(program=Batch(), state=str(tmp_path), concurrency_given=given)
    route, connection = Route(endpoint=endpoint, model="m"), ConnectionSpec(endpoint=endpoint)
    limits = Session(order, {}).terms(ResolvedRoute(route, connection), "inline").limits
    assert limits.concurrency == (connections_max() if concurrency == "most" else concurrency)
    assert limits.timeout.first_byte_s == first_byte_s


def test_a_timeout_by_hand_holds_at_a_server_of_the_users_own(tmp_path):
    order = JobSpec(program=Batch(), state=str(tmp_path), limits=bounded(Limits(), {"timeout": "20s"}, 0.0))
    route, connection = Route(endpoint="http://gpu:8000", model="m"), ConnectionSpec(endpoint="http://gpu:8000")
    limits = Session(order, {}).terms(ResolvedRoute(route, connection), "inline").limits
    assert attempt_timeout_s(limits.timeout, 1_000, 1_000) == 20.0


def _run(folder: Path, wish: ModelSpec, **more: Any) -> Any:
    order = JobSpec(
        program=Label(texts=("It has a bug", "praise it")), job="mine", state=str(folder), model_spec=wish, **more
    )
    return asyncio.run(Session(order, {}).run())


def test_a_complete_job_asked_for_again_opens_no_road(tmp_path, monkeypatch):
    first = _run(tmp_path, ModelSpec(model="sim"))

    def refuse(*arguments: object) -> None:
        raise SetupError("a road was opened")

    monkeypatch.setattr("actors.api.session.destination", refuse)
    again = _run(tmp_path, ModelSpec(model="sim"))
    assert again.answer == first.answer == ["bug", "praise"]
    assert again.facts["paid_calls"] == 2
    for other in ({"wish": ModelSpec(model="other")}, {"wish": ModelSpec(model="sim"), "fresh": True}):
        with pytest.raises(SetupError, match="a road was opened"):
            _run(tmp_path, **other)


def test_a_stop_before_the_beginning_is_kept(tmp_path, monkeypatch):
    order = JobSpec(
        program=Label(texts=("It has a bug",) * 50), job="mine", state=str(tmp_path), model_spec=ModelSpec(model="sim")
    )
    session = Session(order, {})
    begin = Driver._begin

    async def stopped_first(self: Driver) -> None:
        await session.stop("drain", "me")
        await begin(self)

    monkeypatch.setattr(Driver, "_begin", stopped_first)
    ended = asyncio.run(session.run())
    assert (ended.facts["outcome"], ended.facts["why"], ended.facts["attempts"]) == ("partial", "drain: by me", 0)


def test_lines_go_on_where_they_stopped(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("one\n\ntwo\r\nthree")
    source = LineSource(str(path), spool=tmp_path / "spool")
    check = source.check()
    assert (check.rows, check.size_bytes) == (3, 15)
    first = source.read(1)
    assert [(row.key, row.body) for row in first.rows] == [("1", b"one")]
    other = LineSource(str(path), spool=tmp_path / "spool")
    assert other.check().digest == check.digest
    other.seek(first.position)
    rest = other.read(10)
    assert [(row.key, row.body) for row in rest.rows] == [("3", b"two"), ("4", b"three")]
    assert (rest.ended, rest.position) == (True, 15)
    with pytest.raises(SourceError, match="has changed since this job began"):
        other.seek(2)
    path.write_text("one\n\ntwo\nthree\nfour\n")
    with pytest.raises(SourceError, match="has changed since it was checked"):
        source.read(1)
    path.write_text(" \n")
    with pytest.raises(SourceError, match="is empty"):
        LineSource(str(path), spool=tmp_path / "spool").check()
