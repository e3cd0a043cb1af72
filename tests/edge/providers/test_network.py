"""Certificates and proxies: real TLS with an authority of the test's own, and real proxies, on both roads."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from actors.providers.anthropic.account import from_environ
from actors.providers.credentials.credential import Credential, CredentialError
from actors.providers.messages.client import AnthropicModel
from actors.providers.transport.proxy_tls import proxy_for
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.scripted_http_server import MESSAGE, Scripted, http, refusing, scripted, tunnel
from tests.support.patience import PATIENCE_S

KEY = "sk-ant-api03-verysecretkey-0123456789"
BODY = b'{"model":"m","max_tokens":1,"messages":[]}'


@pytest.fixture(params=["direct", "sdk"])
def through_sdk(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "sdk")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


@asynccontextmanager
async def secure(authority: trustme.CA) -> AsyncIterator[Scripted]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with scripted(lambda _: http(MESSAGE), context) as server:
        yield server


async def called(through_sdk: bool, **environ: str) -> Reply | Failure:
    """One call with a credential made from this environment."""
    credential = from_environ({"ANTHROPIC_API_KEY": KEY, **environ})
    assert credential is not None
    model = AnthropicModel(credential, through_sdk=through_sdk)
    try:
        return await model.call(BODY, output_tokens_max=1, timeout_s=PATIENCE_S)
    finally:
        await model.close()


async def test_ssl_cert_file_is_trusted(authority: trustme.CA, ca_file: str, through_sdk: bool) -> None:
    async with secure(authority) as server:
        found = await called(through_sdk, ANTHROPIC_BASE_URL=server.url, SSL_CERT_FILE=ca_file)
    assert isinstance(found, Reply)
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_stranger_is_not_trusted_and_gets_nothing(authority: trustme.CA, through_sdk: bool) -> None:
    async with secure(authority) as server:
        found = await called(through_sdk, ANTHROPIC_BASE_URL=server.url)
    assert isinstance(found, Failure)
    assert (found.kind, found.sent) == (FailureKind.BLOCKED, False)
    assert "certificate" in found.message and "SSL_CERT_FILE" in found.message
    assert server.asked == []


async def test_a_certificate_file_that_is_not_there_is_named(tmp_path: Path, through_sdk: bool) -> None:
    nothing = str(tmp_path / "no.pem")
    found = await called(through_sdk, ANTHROPIC_BASE_URL="https://127.0.0.1:1", SSL_CERT_FILE=nothing)
    assert isinstance(found, Failure)
    assert (found.kind, found.sent) == (FailureKind.BLOCKED, False)
    assert nothing in found.message and "No such file" in found.message


async def test_https_goes_through_its_proxy(authority: trustme.CA, ca_file: str, through_sdk: bool) -> None:
    async with secure(authority) as server, tunnel("me:pass-word") as proxy:
        found = await called(
            through_sdk,
            ANTHROPIC_BASE_URL=server.url,
            SSL_CERT_FILE=ca_file,
            HTTPS_PROXY=proxy.url.replace("//", "//me:pass-word@"),
        )
    assert isinstance(found, Reply)
    assert proxy.opened == [server.url.removeprefix("https://")]


async def test_no_proxy_goes_past_the_proxy(authority: trustme.CA, ca_file: str, through_sdk: bool) -> None:
    async with secure(authority) as server, tunnel() as proxy:
        found = await called(
            through_sdk,
            ANTHROPIC_BASE_URL=server.url,
            SSL_CERT_FILE=ca_file,
            HTTPS_PROXY=proxy.url,
            NO_PROXY="example.com, 127.0.0.1",
        )
    assert isinstance(found, Reply)
    assert proxy.opened == []


async def test_a_proxy_that_refuses_is_told_without_its_password(through_sdk: bool) -> None:
    async with tunnel("me:another") as proxy:
        address = proxy.url.replace("//", "//me:pass-word@")
        found = await called(through_sdk, ANTHROPIC_BASE_URL="https://127.0.0.1:1", HTTPS_PROXY=address)
    assert isinstance(found, Failure)
    assert (found.kind, found.status, found.sent) == (FailureKind.UNAUTHORISED, 407, False)
    assert "proxy" in found.message and "pass-word" not in found.message


async def test_a_proxy_that_is_away_means_not_sent(through_sdk: bool) -> None:
    with refusing() as url:
        address = url.replace("//", "//me:pass-word@")
        found = await called(through_sdk, ANTHROPIC_BASE_URL="https://127.0.0.1:1", HTTPS_PROXY=address)
    assert isinstance(found, Failure)
    assert (found.kind, found.sent) == (FailureKind.TRANSIENT, False)
    assert "pass-word" not in found.message


async def test_plain_http_asks_its_proxy_for_the_whole_address(through_sdk: bool) -> None:
    async with scripted(lambda _: http(MESSAGE)) as proxy:
        found = await called(through_sdk, ANTHROPIC_BASE_URL="http://127.0.0.1:1/llm", HTTP_PROXY=proxy.url)
    assert isinstance(found, Reply)
    assert proxy.asked[0].target == "http://127.0.0.1:1/llm/v1/messages"


@pytest.mark.parametrize(
    ("url", "no_proxy", "past"),
    [
        ("https://api.anthropic.com", "", False),
        ("https://api.anthropic.com", "*", True),
        ("https://api.anthropic.com", "anthropic.com", True),
        ("https://api.anthropic.com", ".anthropic.com", True),
        ("https://api.anthropic.com", "*.anthropic.com", True),
        ("https://API.Anthropic.com", "api.anthropic.COM", True),
        ("https://anthropic.com", ".anthropic.com", True),
        ("https://notanthropic.com", "anthropic.com", False),
        ("https://gw.example:8443", "gw.example:8443", True),
        ("https://gw.example:8443", "gw.example:443", False),
        ("https://gw.example:8443", " , x ,gw.example", True),
        ("https://10.1.2.3", "10.0.0.0/8", True),
        ("https://11.1.2.3", "10.0.0.0/8", False),
        ("https://[::1]:8443", "::1", True),
        ("https://[::1]:8443", "[::1]", True),
        ("https://[2001:db8::7]", "2001:db8::/32", True),
        ("https://gw.example", "10.0.0.0/8", False),
        ("https://gw.example", "gw.example:443", True),  # the scheme's own port
        ("https://gw.example.", "gw.example", True),
        ("https://gw.example", "x gw.example", True),  # apart by blanks, as curl reads it
        ("https://10.1.2.3:8443", "10.0.0.0/8:8443", True),
        ("https://10.1.2.3:8443", "10.1.2.3:443", False),
        ("https://[::1]:8443", "[::1]:8443", True),
        ("https://[::1]:8443", "[::1]:443", False),
        ("https://gw.example", ".", False),
        ("https://gw.example", "x, *", True),
    ],
)
def test_no_proxy_names_hosts(url: str, no_proxy: str, past: bool) -> None:
    credential = Credential(https_proxy="http://p:1", no_proxy=no_proxy)
    assert proxy_for(url, credential) == (None if past else "http://p:1")


def test_each_scheme_has_its_proxy() -> None:
    credential = Credential(https_proxy="http://s:1", http_proxy="http://p:1")
    assert proxy_for("https://a", credential) == "http://s:1"
    assert proxy_for("http://a", credential) == "http://p:1"
    assert proxy_for("http://a", Credential()) is None


SOCKS = "socks5://127.0.0.1:1080"


@pytest.mark.parametrize(
    ("environ", "proxy"),
    [
        ({"ALL_PROXY": SOCKS, "NO_PROXY": "127.0.0.1,localhost"}, None),
        ({"all_proxy": SOCKS, "no_proxy": "127.0.0.0/8"}, None),
        ({"ALL_PROXY": SOCKS, "NO_PROXY": "*"}, None),
        ({"ALL_PROXY": SOCKS, "HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ({"HTTPS_PROXY": SOCKS}, None),  # the address is http
        ({"HTTPS_PROXY": "http://[x:secretvalue@y"}, None),
        ({"ALL_PROXY": "http://p:1", "http_proxy": "q:2"}, "http://q:2"),
        ({"HTTP_PROXY": "http://p:1", "http_proxy": ""}, None),  # as urllib: the lower one counts
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "127.0.0.1", "no_proxy": ""}, "http://p:1"),
    ],
)
def test_the_proxy_that_would_be_used_is_the_one_that_is_checked(environ: dict[str, str], proxy: str | None) -> None:
    address = "http://127.0.0.1:8000"
    found = from_environ({"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": address} | environ)
    assert found is not None and proxy_for(address, found) == proxy
    assert "secretvalue" not in repr(found)
    found.redactor()


@pytest.mark.parametrize("environ", [{"ALL_PROXY": SOCKS}, {"ALL_PROXY": SOCKS, "NO_PROXY": "127.0.0.2"}])
def test_a_proxy_that_cannot_be_used_is_refused_before_anything(environ: dict[str, str]) -> None:
    with pytest.raises(CredentialError, match=r"^HTTP_PROXY or ALL_PROXY must be an http"):
        from_environ({"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://127.0.0.1:8000"} | environ)
