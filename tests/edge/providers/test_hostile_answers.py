"""Whatever a body holds, the outcome is an answer, or a typed failure of an answer that came: never a lost connection,
never another exception."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import aiohttp
import msgspec
import pytest
from multidict import CIMultiDict

from actors.providers.chat_completions import client as chat
from actors.providers.client.http_model import HttpModel
from actors.providers.client.wire_form import WireForm
from actors.providers.credentials.credential import Credential
from actors.providers.embeddings import client as embeddings
from actors.providers.messages.client import MESSAGES_FORM
from actors.providers.registry import row_of
from actors.providers.responses import client as responses
from actors.providers.transport.body import bounded
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from policies.failures.retry import RetryPolicy, may_retry
from policies.failures.timeout import TimeoutPolicy
from tests.edge.providers.hostile_answers import ERROR, PLAIN, bodies, streams
from tests.edge.support.scripted_http_server import compact

FORMS = {
    "messages": (MESSAGES_FORM,), "chat": (chat.CHAT_FORM, chat.GIVEN_FORM),
    "responses": (responses.RESPONSES_FORM, responses.GIVEN_FORM),
    "embeddings": (embeddings.EMBEDDING_FORM, embeddings.GIVEN_FORM),
}  # fmt: skip
EACH_FORM = pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name, forms in FORMS.items() for form in forms],
    ids=[f"{name} {'given' if form.mark else 'own'}" for name, forms in FORMS.items() for form in forms],
)  # fmt: skip
CASES = 700
"""Bodies of each form and kind."""


class InMemory:
    """Response with this body, in chunks of `size` bytes."""

    def __init__(self, body: bytes, kind: str, status: int = 200, size: int = 1 << 20) -> None:
        self.body, self.status, self.size = body, status, size
        self.headers = CIMultiDict({"content-type": kind})

    async def __aenter__(self) -> InMemory:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def chunks(self) -> AsyncIterator[bytes]:
        return bounded(self._chunks())

    async def _chunks(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self.body), self.size):
            yield self.body[at : at + self.size]

    async def read(self) -> bytes:
        return self.body

    def received(self) -> bytes:
        return self.body


class Cut(InMemory):
    """Response of which only this part of the body came before its connection ended."""

    async def read(self) -> bytes:
        raise aiohttp.ClientPayloadError("not enough data")

    async def _chunks(self) -> AsyncIterator[bytes]:
        yield self.body
        await self.read()


class Wired(HttpModel):
    """Model whose transport gives the response `answer`."""

    answer: InMemory

    def __init__(self, form: WireForm) -> None:
        row = row_of("anthropic" if form is MESSAGES_FORM else "openai")
        url = "https://api.example"
        super().__init__(
            form, row, Credential(api_key="k"), endpoint=url, url=url, concurrency=1, timeouts=TimeoutPolicy()
        )

    async def _make_transport(self) -> Any:
        return self

    def send(self, *_: Any, **__: Any) -> InMemory:
        return self.answer


def done(work: Coroutine[Any, Any, Any]) -> Any:
    """Return what a coroutine returns that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def outcomes(form: WireForm, answers: Iterator[InMemory]) -> Iterator[tuple[InMemory, Reply | Failure]]:
    model = Wired(form)
    for model.answer in answers:
        outcome = done(model._sent(form, b"{}", 5.0, None, None, 1 << 26))
        assert "connection" not in getattr(outcome, "message", ""), (model.answer.body[:300], outcome)
        assert msgspec.json.decode(msgspec.json.encode(outcome), type=type(outcome)) == outcome, "a journal holds it"
        yield model.answer, outcome


def paid_attempts(failure: Failure) -> int:
    """Return the attempts that a call makes whose attempts all end so."""
    policy = RetryPolicy()
    return next(n for n in range(1, 20) if not may_retry(policy, failure, n, 0, 10_000, paid=n).again)


@EACH_FORM
def test_any_whole_answer_is_read_or_is_an_answer_that_came(name: str, form: WireForm) -> None:
    chance = random.Random(f"{name} whole")
    plain = (InMemory(body, "application/json") for body in bodies(PLAIN[name], chance, CASES))
    for answer, outcome in outcomes(form, plain):
        if isinstance(outcome, Failure):
            named = outcome.kind is not FailureKind.UNREADABLE and b'"error"' in answer.body
            assert (outcome.answer_came or named) and outcome.status, (answer.body[:300], outcome)
            assert named or paid_attempts(outcome) <= 2


@EACH_FORM
def test_any_streamed_answer_is_read_or_is_an_answer_that_came(name: str, form: WireForm) -> None:
    chance = random.Random(f"{name} streamed")
    given = (
        InMemory(body, "text/event-stream", size=chance.choice((37, 1_000, 1 << 20)))
        for body in streams(name, chance, CASES)
    )
    begun = 0
    for answer, outcome in outcomes(form, given):
        if isinstance(outcome, Failure):
            came = outcome.kind is FailureKind.UNREADABLE and outcome.answer_came and outcome.status == 200
            early = outcome.kind is FailureKind.TRANSIENT and outcome.message.startswith("the stream was cut before")
            assert came or early or b'"error"' in answer.body, (answer.body[:300], outcome)
            assert not outcome.answer_came or paid_attempts(outcome) <= 2
            begun += outcome.answer_came
    assert begun > CASES // 50


@EACH_FORM
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_an_answer_that_was_cut_anywhere_is_read_or_had_come(name: str, form: WireForm, kind: str) -> None:
    body, model, stages = compact(PLAIN[name]), Wired(form), []
    first = body.index(b",")
    for length in range(len(body) + 1):
        model.answer = Cut(body[:length], kind)
        outcome = done(model._sent(form, b"{}", 5.0, None, None, 1 << 26))
        if isinstance(outcome, Reply):
            stages.append("read")
        else:
            stages.append("came" if outcome.answer_came else "lost")
            assert outcome.answer_came or (outcome.kind is FailureKind.TRANSIENT and length <= first), outcome
    assert [stage for stage, _ in itertools.groupby(stages)] == ["lost", "came", "read"]
    assert stages.index("read") < len(body)


@pytest.mark.parametrize("charset", ["", "hex", "idna", "punycode", "undefined", "\0", "x" * 1_000, "latin-1", "utf-16"])
@EACH_FORM
def test_a_byte_that_is_no_utf_8_loses_no_answer_whatever_charset_is_named(
    name: str, form: WireForm, charset: str
) -> None:
    body = compact(PLAIN[name]).replace(b'"m"', b'"m\xff"')
    for kind in ("application/json", "text/plain"):
        ((_, outcome),) = outcomes(form, iter([InMemory(body, f"{kind}; charset={charset}")]))
        assert isinstance(outcome, Reply), outcome


@EACH_FORM
@pytest.mark.parametrize("status", [200, 400, 429, 500, 529])
def test_any_error_keeps_its_status(name: str, form: WireForm, status: int) -> None:
    chance = random.Random(f"{name} {status}")
    for kind in ("application/json", "text/event-stream"):
        given = (
            InMemory(body if kind == "application/json" else b"event: error\ndata: " + body + b"\n\n", kind, status)
            for body in bodies(ERROR, chance, 60)
        )
        for answer, outcome in outcomes(form, given):
            assert isinstance(outcome, Failure)
            assert outcome.status >= 200, (answer.body[:300], outcome)


@EACH_FORM
def test_a_fault_of_any_reader_is_an_answer_that_came(
    name: str, form: WireForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole family, where it is decided: any error of code that reads, also of code to come."""
    def failing(error: BaseException) -> Callable[..., Any]:
        def read(*_: Any) -> Any:
            raise error

        return read

    for error in (ValueError("v"), TypeError("t"), RecursionError(), OverflowError(), KeyError("k"), AssertionError()):
        broken = msgspec.structs.replace(form, read=failing(error))
        for answer in (InMemory(b"{}", "application/json"), InMemory(b"{}", "text/plain")):
            ((_, outcome),) = outcomes(broken, iter([answer]))
            assert (outcome.kind, outcome.answer_came) == (FailureKind.UNREADABLE, True), error
        assembler = form.stream()
        monkeypatch.setattr(assembler, "take", failing(error))
        broken = msgspec.structs.replace(form, stream=lambda assembler=assembler: assembler)
        ((_, outcome),) = outcomes(broken, iter([InMemory(b"data: {}\n\n", "text/event-stream")]))
        assert (outcome.status, "connection" in outcome.message) == (200, False), outcome
