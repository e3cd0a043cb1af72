"""What a branch is armed with: whoever starts it has asked the SDK already, so that the branch need not import it."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from typing import Any

import msgspec
import pytest
import rich.console
import rich.pretty

from actors.branch.model_registry import ModelRegistry
from actors.branch.outcome_counters import OutcomeCounters
from actors.branch.route_breakers import RouteBreakers
from actors.providers.credentials.credential import Credential
from actors.routing import model_factory
from actors.routing.model_factory import ConnectionSpec, encode, make_model, routes_of, with_prepared
from actors.simulator.frontends.account import encode as encoded
from actors.simulator.settings import SimulatorSettings
from tests.edge.providers.test_key_renewal import key_of
from tests.edge.support import cloud_server
from tests.edge.support.scripted_http_server import MESSAGE, Asked, http, scripted
from tests.edge.support.wired_model import BODY, CREDENTIAL, KEY, always
from tests.support.patience import PATIENCE_S

PATHS = ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches"]

BRANCH = """
import asyncio, sys
from actors.routing.model_factory import make_model

async def work():
    model = make_model(bytes.fromhex(sys.argv[1]))
    reply = await model.call(b"{}", output_tokens_max=16, timeout_s=120)  # it may import the SDK
    await model.close()
    return reply

print(type(asyncio.run(work())).__name__, "anthropic" in sys.modules)
"""


async def test_a_branch_that_is_told_sends_the_same_and_never_imports_the_sdk() -> None:
    async with scripted(always(http(MESSAGE))) as server:
        credential = Credential(api_key=KEY, base_url=server.url, custom_headers=(("X-Team", "search"),))
        connection = ConnectionSpec(endpoint="e", credential=credential)
        for each, imported in ((connection, True), (await with_prepared(connection), False)):
            argv = [sys.executable, "-c", BRANCH, encode(each).hex()]
            ran = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True)
            assert ran.stdout.split() == ["Reply", str(imported)], ran.stderr
        plain, call = server.asked
        assert _headers(plain) == _headers(call)
        assert key_of(call) == KEY and call.headers["x-team"] == "search"


def _headers(asked: Asked) -> dict[str, str]:
    return {name: value for name, value in asked.headers.items() if name != "traceparent"}


async def test_each_route_is_told_its_own() -> None:
    other = Credential(api_key="another-key-0123456789", base_url="http://127.0.0.1:1")
    connection = ConnectionSpec(
        endpoint="e", credential=CREDENTIAL, route_name="a",
        fallbacks=(
            ConnectionSpec(endpoint="s", provider="sim", settings=encoded(SimulatorSettings()), route_name="b"),
            ConnectionSpec(endpoint="f", credential=other, route_name="c"),
        ),
    )  # fmt: skip
    found = await with_prepared(connection)
    assert [name for name, _, _ in routes_of(encode(found))] == ["a", "b", "c"]
    own, simulated, last = found, *found.fallbacks
    assert [path for path, _, _ in own.prepared.requests] == PATHS
    assert simulated == connection.fallbacks[0]
    assert [url for _, url, _ in last.prepared.requests] == [f"http://127.0.0.1:1{path}" for path in PATHS]
    assert all("another-key-0123456789" in str(headers) for _, _, headers in last.prepared.requests)


async def test_no_way_to_print_it_shows_a_key() -> None:
    connection = await with_prepared(ConnectionSpec(endpoint="e", credential=CREDENTIAL))
    assert KEY in str(connection.prepared.requests)
    for each in (connection, connection.prepared):
        with io.StringIO() as string:
            rich.console.Console(file=string, width=500).print(each, [each], rich.pretty.Pretty(each))
            assert KEY not in string.getvalue() + repr(each) + str(each)


async def test_who_prepared_it_makes_no_other_door() -> None:
    plain = ConnectionSpec(endpoint="e", credential=CREDENTIAL, route_name="r", pool_name="p")
    spec = await with_prepared(plain)
    keys = ModelRegistry(make_model, OutcomeCounters(), RouteBreakers("branch:0", lambda: 0.0))
    (model,) = keys.add("first", encode(spec))
    assert keys.add("second", encode(plain)) == [] and keys.open_route("second", 0).model is model
    assert keys.add("first", encode(plain)) == [] and keys.open_route("first", 0).model is model
    assert len(keys.add("third", encode(msgspec.structs.replace(plain, endpoint="f")))) == 1
    await keys.close()


async def test_a_branch_that_is_told_begins_batches_without_the_sdk() -> None:
    async with scripted(always(http({}))) as server:
        credential = Credential(api_key=KEY, base_url=server.url)
        reported: Any = make_model(encode(await with_prepared(ConnectionSpec(endpoint="e", credential=credential))))
        plain: Any = make_model(encode(ConnectionSpec(endpoint="e", credential=credential)))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys.modules[type(reported).__module__], "_import_sdk", None)
            road = await reported._batch_transport()
        other = await plain._batch_transport()
        assert (road._url, dict(road._headers)) == (other._url, dict(other._headers))
        for each in (road, other):
            await each.close()
        await reported.close()
        await plain.close()


async def test_where_the_sdk_makes_each_request_nothing_is_told() -> None:
    for credential in (cloud_server.bedrock("http://127.0.0.1:1"), cloud_server.foundry("http://127.0.0.1:1")):
        connection = ConnectionSpec(endpoint="e", credential=credential)
        assert await with_prepared(connection) == connection


async def test_what_cannot_be_told_is_left_to_the_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(self: object) -> None:
        raise OSError("no")

    connection = ConnectionSpec(endpoint="e", credential=CREDENTIAL)
    monkeypatch.setattr(type(make_model(encode(connection))), "prepared", refuse)
    assert await with_prepared(connection) == connection


async def test_a_key_that_was_renewed_before_the_first_call_is_the_one_that_is_sent() -> None:
    async with scripted(always(http(MESSAGE))) as server:
        credential = Credential(api_key=KEY, base_url=server.url)
        connection = await with_prepared(ConnectionSpec(endpoint="e", credential=credential))
        model: Any = make_model(encode(connection))
        model._keys.credential = Credential(api_key="renewed-0123456789", base_url=server.url)
        assert type(await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)).__name__ == "Reply"
        await model.close()
    assert key_of(server.asked[0]) == "renewed-0123456789"


def test_the_door_stays_light() -> None:
    """Commands import it: neither the SDK nor any client comes with it."""
    script = (
        f"import sys, {model_factory.__name__}; print(sorted({{'anthropic', 'aiohttp', 'httpx2'}} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"
