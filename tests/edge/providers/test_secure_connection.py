"""Connections under TLS, on the loop of the standard library and on that of a branch: what breaks, ends or is given up
leaves nothing behind. A transport under TLS is another one than that of a plain connection, and each loop has its own.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from actors.providers.anthropic.account import from_environ
from actors.providers.chat_completions.client import model_of as chat_model
from actors.providers.client.keyed_model import KeyedModel
from actors.providers.credentials.account import ClientSpec
from actors.providers.credentials.credential import Credential
from actors.providers.messages.client import AnthropicModel
from actors.providers.transport.empty_request import refusal
from actors.providers.transport.server_load import read_metrics
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.scripted_http_server import MESSAGE, Step, http, scripted
from tests.support.patience import PATIENCE_S

KEY = "sk-ant-api03-verysecretkey-0123456789"
BODY = b'{"model":"m","max_tokens":1,"messages":[]}'
LONG = b'{"model":"' + b"m" * (24 << 20) + b'"}'
WHOLE = http(MESSAGE)[0]
assert isinstance(WHOLE, bytes)

Run = Callable[[Coroutine[Any, Any, None]], None]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
on_both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def context(authority: trustme.CA) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(made)
    return made


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def model_at(url: str, trusted: str) -> AnthropicModel:
    """With one connection."""
    credential = from_environ(
        {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url, "SSL_CERT_FILE": trusted}
    )
    assert credential is not None
    return AnthropicModel(credential, concurrency=1)


async def asked(model: AnthropicModel, body: bytes = BODY, timeout_s: float = PATIENCE_S) -> Reply | Failure:
    return await model.call(body, output_tokens_max=1, timeout_s=timeout_s)


async def closed(model: AnthropicModel) -> None:
    async with asyncio.timeout(20):  # asyncio itself waits 30 s for the other end of TLS
        await model.close()


async def served(serve: Serve, context: ssl.SSLContext) -> tuple[asyncio.Server, str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    return server, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@on_both_loops
def test_one_connection_carries_many_calls(context: ssl.SSLContext, trusted: str, run: Run) -> None:
    async def several() -> None:
        async with scripted(lambda _: http(MESSAGE), context) as server:
            model = model_at(server.url, trusted)
            for _ in range(3):
                assert isinstance(await asked(model), Reply)
            await closed(model)
            assert (server.connections, len(server.asked)) == (1, 3)

    run(several())


@on_both_loops
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ([Step.CUT], FailureKind.TRANSIENT), ([Step.RESET], FailureKind.TRANSIENT),
        ([WHOLE[:30], Step.CUT], FailureKind.TRANSIENT), ([WHOLE[:-9], Step.CUT], None),  # its content came whole
        ([b"SSH-2.0-OpenSSH\r\n\r\n", Step.HANG], FailureKind.TRANSIENT), ([Step.HANG], FailureKind.TIMED_OUT),
        ([WHOLE[:-9], Step.HANG], None),
    ],
)  # fmt: skip
def test_what_breaks_leaves_its_place_to_the_next(
    context: ssl.SSLContext, trusted: str, run: Run, answer: list[bytes | Step], kind: FailureKind | None
) -> None:
    brief = Step.HANG in answer and kind is not FailureKind.TRANSIENT

    async def in_turn() -> None:
        answers = [answer, http(MESSAGE), answer]
        if brief:  # over a connection that is there already: the handshake is no part of that time
            answers.insert(0, http(MESSAGE))
        script = iter(answers)
        async with scripted(lambda _: next(script), context) as server:
            model = model_at(server.url, trusted)
            await model.open()
            for given in answers:
                expected = kind if given is answer else None
                found = await asked(model, timeout_s=0.8 if brief and given is answer else PATIENCE_S)
                assert (found.kind if isinstance(found, Failure) else None) is expected, found
                assert not isinstance(found, Failure) or (found.sent and "AttributeError" not in found.message)
            await closed(model)

    run(in_turn())


@on_both_loops
@pytest.mark.parametrize("ends", ["cancelled", "in time", "closed"])
def test_what_is_left_of_a_request_that_was_given_up_is_not_sent(
    context: ssl.SSLContext, trusted: str, run: Run, ends: str
) -> None:
    """Else whoever reads slowly has it whole, answers, and is paid, after it was told as over."""

    async def given_up() -> None:
        began, over, read = asyncio.Event(), asyncio.Event(), asyncio.Event()
        came: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            began.set()
            await over.wait()
            try:
                came.append(await reader.readexactly(len(LONG)))
            except (asyncio.IncompleteReadError, ConnectionError):
                came.append(b"")
            read.set()
            writer.close()

        server, url = await served(serve, context)
        model = model_at(url, trusted)
        await model.open()
        call = asyncio.create_task(asked(model, LONG, 2.0 if ends == "in time" else 60))
        async with asyncio.timeout(PATIENCE_S):
            await began.wait()
        if ends == "cancelled":
            call.cancel()
        elif ends == "closed":
            await closed(model)
        found = (await asyncio.gather(call, return_exceptions=True))[0]
        if isinstance(found, Failure):
            assert found.kind is (FailureKind.TIMED_OUT if ends == "in time" else FailureKind.TRANSIENT), found
        else:
            assert isinstance(found, asyncio.CancelledError) and ends == "cancelled"
        over.set()
        async with asyncio.timeout(PATIENCE_S):
            await read.wait()
        assert came == [b""]
        await closed(model)
        server.close()

    run(given_up())


@on_both_loops
def test_a_connection_whose_long_request_was_not_taken_whole_is_not_used_again(
    context: ssl.SSLContext, trusted: str, run: Run
) -> None:
    """Whoever answers by the head would read the rest of the body as the next request, and answer that."""

    async def early() -> None:
        connections = 0
        over = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.readuntil(b"\r\n\r\n")
            if connections == 1:  # and room for more is told, so that what is left is where it can be lost sight of
                await reader.readexactly(8 << 20)
            assert isinstance(WHOLE, bytes)
            writer.write(WHOLE)
            await over.wait()
            writer.close()

        server, url = await served(serve, context)
        model = model_at(url, trusted)
        for body in (LONG, BODY):
            assert isinstance(await asked(model, body), Reply)
        assert connections == 2
        over.set()
        await closed(model)
        server.close()

    run(early())


# -- one of several servers of a name ----------------------------------------------------------------------------------


def keyed(url: str, trusted: str, **more: str) -> KeyedModel:
    """Client of chat completions at a server's address."""
    credential = Credential(base_url=url, ca_file=trusted, api_key=KEY, **more)
    made = chat_model(ClientSpec(endpoint=url, provider="openai", credential=credential))
    assert isinstance(made, KeyedModel)
    return made


@pytest.mark.parametrize("over_chat", [False, True])
def test_the_certificate_of_a_server_found_by_name_is_checked_for_the_name(
    authority: trustme.CA, trusted: str, over_chat: bool
) -> None:
    """The address alone is in no certificate of such servers; another name is refused, and nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("vllm-headless").configure_cert(context)

    async def found(url: str, **host: str) -> Reply | Failure:
        if over_chat:
            model: Any = keyed(url, trusted, **host)
        else:
            model = AnthropicModel(Credential(base_url=url, ca_file=trusted, api_key=KEY, **host))
        found = await asked(model)
        await closed(model)
        return found

    async def checked() -> None:
        async with scripted(lambda _: http(MESSAGE), context) as server:
            for other in ({}, {"host": "vllm-other"}):
                failure = await found(server.url, **other)
                assert isinstance(failure, Failure)
                assert (failure.sent, "certificate" in failure.message) == (False, True)
            assert not server.asked
            await found(server.url, host="vllm-headless")
            assert server.asked[0].headers["host"] == f"vllm-headless:{server.url.rpartition(':')[2]}"
            credential = Credential(base_url=server.url, ca_file=trusted, host="vllm-headless")
            assert (await refusal(f"{server.url}/v1/messages", credential, PATIENCE_S) or (0,))[0] == 200
            reading = await read_metrics(f"{server.url}/metrics", server.url, credential)
            assert "holds no queue's metrics" in reading.problem, "it was read"

    asyncio.run(checked())
