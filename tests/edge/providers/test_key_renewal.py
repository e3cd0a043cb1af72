"""A key that is refused is read again in its file before that counts as a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from actors.ports.message_batches import BatchRequest
from actors.providers.credentials.credential import Credential
from actors.providers.credentials.reload import CredentialReload
from actors.providers.messages.client import NOTHING, AnthropicModel
from actors.providers.transport import aiohttp_transport
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.support import cloud_server
from tests.edge.support.scripted_http_server import MESSAGE, Answer, Asked, http, scripted
from tests.edge.support.wired_model import BODY, error, told
from tests.support.patience import PATIENCE_S

OLD, NEW = "the-old-key-0123456789", "the-new-key-9876543210"
MADE = {
    "id": "msgbatch_1",
    "processing_status": "in_progress",
    "request_counts": {"processing": 1},
    "created_at": "2026-01-01T00:00:00Z",
}


def key_of(asked: Asked) -> str:
    """The key that came with a request, in either of the headers that the SDK has for it."""
    return asked.headers.get("x-api-key") or asked.headers.get("authorization", "").removeprefix("Bearer ")


def takes(key: str, good: Answer) -> object:
    """A server that takes one key alone."""

    def script(asked: Asked) -> Answer:
        text = key_of(asked)
        return good if text == key else http(error("authentication_error", f"invalid x-api-key {text}"), 401)

    return script


def _credential(kind: str, url: str, file: Path) -> Credential:
    if kind == "bedrock":
        return cloud_server.bedrock(url, api_key=OLD, key_file=str(file))
    if kind == "foundry":
        return cloud_server.foundry(url, api_key=OLD, key_file=str(file))
    return Credential(api_key=OLD, key_file=str(file), base_url=url)


@pytest.mark.parametrize("kind", ["direct", "told", "sdk", "bedrock", "foundry"])
async def test_all_that_are_refused_are_sent_once_more_with_the_new_key(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(NEW)
    async with scripted(takes(NEW, http(MESSAGE))) as server:  # type: ignore[arg-type]
        credential = _credential(kind, server.url, file)
        prepared = await told(AnthropicModel(credential)) if kind == "told" else NOTHING
        model = AnthropicModel(credential, through_sdk=kind == "sdk", prepared=prepared)
        came = await asyncio.gather(*(model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S) for _ in range(8)))
        assert all(isinstance(one, Reply) for one in came), came
        assert 9 <= len(server.asked) <= 16
        before = len(server.asked)
        assert isinstance(await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S), Reply)
        assert len(server.asked) == before + 1
        await model.close()


async def test_of_all_that_are_refused_one_reads_the_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(NEW)
    taken: list[Credential] = []

    async def take(credential: Credential) -> None:
        taken.append(credential)
        await asyncio.sleep(0)

    keys = CredentialReload(Credential(api_key=OLD, key_file=str(file)), take)
    used, refused = keys.credential, Failure(FailureKind.UNAUTHORISED, "no", 401)
    assert await asyncio.gather(*(keys.after(refused, used) for _ in range(20))) == [True] * 20
    assert [credential.api_key for credential in taken] == [NEW]
    assert keys.redact(f"{OLD} {NEW}") == "[redacted] [redacted]"
    for other in (
        Failure(FailureKind.THROTTLED, "slow", 429),
        Failure(FailureKind.UNAUTHORISED, "proxy", 407, sent=False),
    ):
        assert not await keys.after(other, used)


@pytest.mark.parametrize("content", [OLD, "", "two\nlines", None])
async def test_without_another_key_it_is_refused_once_and_told(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    async with scripted(takes(NEW, http(MESSAGE))) as server:  # type: ignore[arg-type]
        model = AnthropicModel(_credential("direct", server.url, file))
        found = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
        await model.close()
        assert len(server.asked) == 1
    assert isinstance(found, Failure) and found.kind is FailureKind.UNAUTHORISED
    assert OLD not in found.message


async def test_a_new_key_that_is_refused_too_is_told_and_neither_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(NEW)
    async with scripted(takes("a third one", http(MESSAGE))) as server:  # type: ignore[arg-type]
        model = AnthropicModel(_credential("direct", server.url, file))
        found = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
        await model.close()
        assert len(server.asked) == 2
    assert isinstance(found, Failure) and found.kind is FailureKind.UNAUTHORISED
    assert OLD not in found.message and NEW not in found.message and "[redacted]" in found.message


async def test_message_batches_are_asked_once_more_too(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(NEW)
    async with scripted(takes(NEW, http(MADE))) as server:  # type: ignore[arg-type]
        model = AnthropicModel(_credential("direct", server.url, file))
        assert await model.batches.submit([BatchRequest("a", BODY)], PATIENCE_S) == "msgbatch_1"
        assert [key_of(asked) for asked in server.asked] == [OLD, NEW]
        failure = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
        assert isinstance(failure, Failure)  # no message, but taken
        assert key_of(server.asked[-1]) == NEW
        await model.close()


@pytest.mark.parametrize("what", ["call", "submit", "look", "listed", "cancel"])
async def test_a_source_that_names_another_key_each_time_is_asked_once(what: str, tmp_path: Path) -> None:
    """As a service that makes a token for each request does; a server that refuses them all is not asked for ever."""
    file = tmp_path / "key"
    file.write_text("key-of-request-1")

    def refuses(asked: Asked) -> Answer:
        number = len(server.asked)
        file.write_text(f"key-of-request-{number + 1}")
        assert number < 20, "it is asked for ever"
        return http(error("authentication_error", "invalid x-api-key"), 401)

    async with scripted(refuses) as server:
        model = AnthropicModel(_credential("direct", server.url, file))
        asked: dict[str, Callable[[], Awaitable[Any]]] = {
            "call": lambda: model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S),
            "submit": lambda: model.batches.submit([BatchRequest("a", BODY)], PATIENCE_S),
            "look": lambda: model.batches.look("msgbatch_1"),
            "listed": lambda: model.batches.listed("", 0.0, 10),
            "cancel": lambda: model.batches.cancel("msgbatch_1"),
        }
        found = await asked[what]()
        await model.close()
        assert len(server.asked) == 2
    assert isinstance(found, Failure) and found.kind is FailureKind.UNAUTHORISED


async def test_a_key_that_is_renewed_while_the_road_is_made_is_the_roads(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(takes(NEW, http(MESSAGE))) as server:  # type: ignore[arg-type]
        model = AnthropicModel(Credential(api_key=OLD, base_url=server.url))
        made, goes_on, head_of = asyncio.Event(), asyncio.Event(), aiohttp_transport.head_of

        async def slowly(*args: Any) -> Any:
            made.set()
            await goes_on.wait()
            return await head_of(*args)

        monkeypatch.setattr(aiohttp_transport, "head_of", slowly)
        opening = asyncio.create_task(model.open())
        await made.wait()
        taking = asyncio.create_task(model._take_key(Credential(api_key=NEW, base_url=server.url)))
        await asyncio.sleep(0.05)
        goes_on.set()
        await asyncio.gather(opening, taking)
        assert isinstance(await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S), Reply)
        await model.close()
