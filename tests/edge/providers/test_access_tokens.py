"""Tokens of Microsoft Entra ID and of Google Cloud: fetched before the first call, renewed before they end, beside the calls."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from actors.providers.client.token_renewal import TokenRenewal
from actors.providers.credentials import google_tokens
from actors.providers.credentials.access_token import AccessToken, TokenSource, due_s
from actors.providers.credentials.account import ClientSpec, ProviderLocation, opened
from actors.providers.credentials.credential import Credential, CredentialError
from actors.providers.credentials.entra_tokens import SCOPE
from actors.providers.credentials.reload import CredentialReload
from actors.providers.pricing import known
from actors.providers.registry import load, row_of
from actors.providers.transport.failures import RequestUnprepared
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.providers.test_chat_client import BODY, YES
from tests.edge.providers.test_chat_errors import openai
from tests.edge.providers.test_responses_response import response, said
from tests.edge.support import cloud_server
from tests.edge.support.scripted_http_server import Answer, Asked, Scripted, http, scripted
from tests.support.patience import PATIENCE_S

HOUR_S = 3_600.0
FIRST, SECOND = "eyJ-made-up-first-token", "eyJ-made-up-second-token"


@pytest.mark.parametrize(
    ("left_s", "after_s"),
    [(HOUR_S, 3_300.0), (86_400.0, 86_100.0), (600.0, 300.0), (400.0, 200.0), (40.0, 30.0), (20.0, 20.0), (-5.0, 1.0)],
)
def test_a_token_is_due_before_its_end(left_s: float, after_s: float) -> None:
    assert due_s(AccessToken("t", 1_000.0 + left_s), 1_000.0) == 1_000.0 + after_s
    assert FIRST not in repr(AccessToken(FIRST, 1.0))


class Cloud:
    """Source of tokens under a clock of the test's."""

    def __init__(self, life_s: float = HOUR_S) -> None:
        self.now_s, self.life_s, self.fetched, self.broken = 1_000.0, life_s, 0, False
        self.let = threading.Event()
        self.let.set()
        self.taken: list[str] = []
        self.keys = CredentialReload(Credential(base_url="http://gpu:8"), self._take)
        self.renewal = TokenRenewal(self._fetch, self.keys, lambda: self.now_s)

    def _fetch(self) -> AccessToken:
        assert self.let.wait(PATIENCE_S)
        self.fetched += 1
        if self.broken:
            raise OSError("no way to the cloud")
        return AccessToken(f"eyJ-made-up-{self.fetched}", self.now_s + self.life_s)

    async def _take(self, credential: Credential) -> None:
        self.taken.append(credential.auth_token)

    async def call(self) -> str:
        """What each call does; the token that it is sent with."""
        if self.renewal.due:
            await self.renewal.in_time()
        return self.keys.credential.auth_token

    async def settled(self) -> None:
        if self.renewal._task is not None:
            await asyncio.wait([self.renewal._task])


async def test_a_token_is_renewed_before_it_ends_and_no_call_waits_for_it() -> None:
    cloud = Cloud()
    await cloud.renewal.first()
    await cloud.renewal.first()
    assert (await cloud.call(), cloud.fetched) == ("eyJ-made-up-1", 1)
    cloud.now_s += 3_299
    assert (await cloud.call(), cloud.fetched) == ("eyJ-made-up-1", 1)
    cloud.now_s += 2
    cloud.let.clear()  # the cloud is slow
    assert [await cloud.call() for _ in range(3)] == ["eyJ-made-up-1"] * 3
    cloud.let.set()
    await cloud.settled()
    assert (await cloud.call(), cloud.fetched, cloud.taken[-1]) == ("eyJ-made-up-2", 2, "eyJ-made-up-2")
    assert "[redacted]" in cloud.keys.redact("eyJ-made-up-1") and "[redacted]" in cloud.keys.redact("eyJ-made-up-2")


async def test_after_a_long_rest_a_call_waits_for_a_token_that_holds() -> None:
    cloud = Cloud()
    await cloud.renewal.first()
    cloud.now_s += 3 * HOUR_S
    assert await asyncio.gather(*(cloud.call() for _ in range(9))) == ["eyJ-made-up-2"] * 9
    assert cloud.fetched == 2


async def test_a_cloud_that_does_not_answer_is_asked_again_later_while_the_token_holds() -> None:
    cloud = Cloud()
    await cloud.renewal.first()
    cloud.broken, cloud.now_s = True, cloud.now_s + 3_400
    for _ in range(3):
        assert await cloud.call() == "eyJ-made-up-1"
        await cloud.settled()
    assert cloud.fetched == 2, "not again at once"
    cloud.broken, cloud.now_s = False, cloud.now_s + 31
    await cloud.call()
    await cloud.settled()
    assert await cloud.call() == "eyJ-made-up-3"


async def test_without_a_first_token_all_calls_have_one_error() -> None:
    cloud = Cloud()
    cloud.broken = True
    for _ in range(5):
        with pytest.raises(RequestUnprepared):
            await cloud.renewal.first()
    assert cloud.fetched == 1
    cloud.now_s += 6
    cloud.broken = False
    await cloud.renewal.first()
    assert cloud.keys.credential.auth_token == "eyJ-made-up-2"


async def test_tokens_of_a_year_do_not_pile_up() -> None:
    cloud = Cloud()
    await cloud.renewal.first()
    for _ in range(50):
        cloud.now_s += HOUR_S
        await cloud.call()
    assert len(cloud.keys._redactors) <= 8
    await cloud.renewal.close()


# -- clients ---------------------------------------------------------------------------------------------------------


class Identity:
    """azure-identity in place of the library: tokens, or its error."""

    def __init__(self, *tokens: str, error: Exception | None = None) -> None:
        self.tokens, self.error, self.scopes = list(tokens), error, []  # type: ignore[var-annotated]

    def get_token(self, scope: str) -> Any:
        self.scopes.append(scope)
        if self.error is not None:
            raise self.error
        token = self.tokens.pop(0) if len(self.tokens) > 1 else self.tokens[0]
        return type("AccessToken", (), {"token": token, "expires_on": 4_102_444_800})()


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Callable[[Identity], None]:
    def install(identity: Identity) -> None:
        package, module = ModuleType("azure"), ModuleType("azure.identity")
        package.__path__ = []  # type: ignore[attr-defined]
        module.DefaultAzureCredential = lambda: identity  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "azure", package)
        monkeypatch.setitem(sys.modules, "azure.identity", module)

    return install


def takes(token: str, good: dict[str, Any]) -> Callable[[Asked], Answer]:
    def script(asked: Asked) -> Answer:
        found = asked.headers.get("authorization", "")
        return http(good) if found == f"Bearer {token}" else http(openai(f"Unauthorized: {found}", code="401"), 401)

    return script


async def called(server: Scripted, provider: str, times: int = 1, environ: dict[str, str] | None = None, **where: str) -> list[Any]:
    account = opened(ProviderLocation(provider=provider, base_url=server.url, **where), environ or {})
    model = load(row_of(provider).client)(ClientSpec(endpoint=account.endpoint, provider=provider, credential=account.credential))
    found = [await model.call(BODY, output_tokens_max=20, timeout_s=PATIENCE_S) for _ in range(times)]
    await model.close()
    return found


@pytest.mark.parametrize(("provider", "good"), [("azure", YES), ("azure-responses", response(said("yes")))])
async def test_azure_without_a_key_is_opened_by_a_token_of_entra_id(azure, provider: str, good: dict[str, Any]) -> None:
    identity = Identity(FIRST)
    azure(identity)
    async with scripted(takes(FIRST, good)) as server:
        found = await called(server, provider, 3)
        assert all(isinstance(each, Reply) for each in found), found
        assert identity.scopes == [SCOPE], "one token for all calls"
        assert all("api-key" not in each.headers for each in server.asked)
        [reply] = await called(server, provider, environ={"AZURE_OPENAI_API_KEY": "made-up-key-of-azure"})
        assert isinstance(reply, Failure) and server.asked[-1].headers["api-key"] == "made-up-key-of-azure"


async def test_a_token_that_is_refused_is_fetched_anew_and_the_call_sent_once_more(azure) -> None:
    azure(Identity(FIRST, SECOND))
    async with scripted(takes(SECOND, YES)) as server:
        found = await called(server, "azure", 2)
        assert [type(each) for each in found] == [Reply, Reply] and len(server.asked) == 3
    azure(Identity(FIRST))
    async with scripted(takes(SECOND, YES)) as server:
        [failure] = await called(server, "azure")
        assert failure.kind is FailureKind.UNAUTHORISED and FIRST not in failure.message and len(server.asked) == 1


class ClientAuthenticationError(Exception):
    """That of azure-core."""


class ServiceRequestError(Exception):
    """That of azure-core."""


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ClientAuthenticationError("DefaultAzureCredential failed"), FailureKind.UNAUTHORISED, "Cognitive Services OpenAI User"),
        (ServiceRequestError("no route"), FailureKind.TRANSIENT, "no credentials could be fetched"),
    ],
)
async def test_an_identity_that_is_missing_says_what_to_do_and_nothing_is_sent(azure, error, kind, words) -> None:
    azure(Identity(error=error))
    async with scripted(takes(FIRST, YES)) as server:
        [failure] = await called(server, "azure")
        assert (failure.kind, failure.sent, server.asked) == (kind, False, []) and words in failure.message


def test_azure_without_key_and_library_says_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure", None)
    with pytest.raises(CredentialError, match=r"set a good key in AZURE_OPENAI_API_KEY, or pip install .*\[entra\]"):
        opened(ProviderLocation(provider="azure", resource="r"), {})


async def test_gemini_on_vertex_is_opened_by_googles_credentials(tmp_path, monkeypatch) -> None:
    async with scripted(lambda asked: cloud_server.gives_token(asked) or takes(cloud_server.TOKEN, YES)(asked)) as server:
        account = cloud_server.service_account(tmp_path, server.url)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
        found = await called(server, "vertex-gemini", 2, region="eu-west-1", project="p")
        assert all(isinstance(each, Reply) for each in found), found
        assert [each.target for each in server.asked] == ["/token", *["/chat/completions"] * 2]
        source: TokenSource = google_tokens.tokens(Credential())
        assert (await asyncio.to_thread(source)).text == cloud_server.TOKEN


def test_gemini_on_vertex_has_the_price_of_its_model() -> None:
    on_vertex, window = known("google/gemini-2.5-flash", provider="vertex-gemini")
    assert on_vertex is not None and (on_vertex, window) == known("gemini-2.5-flash", provider="gemini")
    assert known("meta/llama-9", provider="vertex-gemini") == (None, None)


@pytest.mark.parametrize(
    ("region", "host"), [("global", "aiplatform.googleapis.com"), ("europe-west1", "europe-west1-aiplatform.googleapis.com")]
)
def test_gemini_on_vertex_has_the_address_of_its_project(region: str, host: str) -> None:
    account = opened(ProviderLocation(provider="vertex-gemini", region=region, project="p"), {})
    assert account.endpoint == f"vertex-gemini://p/{region}"
    model = load(row_of("vertex-gemini").client)(ClientSpec(endpoint=account.endpoint, credential=account.credential))
    assert model.url == f"https://{host}/v1/projects/p/locations/{region}/endpoints/openapi"
