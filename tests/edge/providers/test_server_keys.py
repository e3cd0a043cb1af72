"""Keys of servers of the user's own: none is needed, and which one is sent where several are set."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.providers.credentials.account import ProviderLocation, credential_of
from actors.providers.credentials.credential import CredentialError
from actors.providers.credentials.environment import hidden_in, keys_in, scrub
from actors.providers.messages.client import AnthropicModel
from actors.providers.registry import how_to_open, is_own_server
from cortex.values.reply import Reply
from tests.edge.support.scripted_http_server import MESSAGE, http, scripted
from tests.edge.support.wired_model import BODY, always
from tests.support.patience import PATIENCE_S

VENDOR, SERVER, FILE = "sk-ant-api03-of-the-vendor-0123456789", "key-of-a-server-0123456789", "key-in-a-file-0123456789"
OWN, GATEWAY = "http://gpu:8000/v1", "https://llm.example.com"


@pytest.mark.parametrize(
    ("endpoint", "own"),
    [
        ("http://gpu:8000", True),
        ("http://127.0.0.1:11434", True),
        ("http://[::1]:8080", True),
        ("https://llm.example.com/anthropic", True),
        ("https://api.deepseek.com/anthropic", True),
        ("https://notanthropic.com", True),
        ("https://api.anthropic.com", False),
        ("https://api.anthropic.com.", False),
        ("https://eu.api.anthropic.com/v2", False),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com", False),
        ("bedrock://eu-west-1", False),
        ("bedrock://eu-west-1+http://gpu:8000", False),
        ("sim:d9ccea691a3d", False),
        ("local", False),
        ("given", False),
        ("http://[x", False),
        ("", False),
    ],
)
def test_a_server_at_no_providers_host_is_the_users_own(endpoint: str, own: bool) -> None:
    assert is_own_server(endpoint) == own
    advice = how_to_open(endpoint)
    assert ("CORTEX_SERVER_KEY" in advice) == own and (not own or "ANTHROPIC" not in advice.upper())


@pytest.mark.parametrize(
    ("environ", "base_url", "in_file", "sent"),
    [
        ({}, OWN, False, ""),
        ({}, GATEWAY, False, ""),
        ({"CORTEX_SERVER_KEY": f"{SERVER}\n"}, OWN, False, SERVER),
        ({"CORTEX_SERVER_KEY": SERVER, "ANTHROPIC_API_KEY": VENDOR}, OWN, False, SERVER),
        ({"CORTEX_SERVER_KEY": SERVER, "ANTHROPIC_AUTH_TOKEN": VENDOR}, OWN, False, SERVER),
        ({"CORTEX_SERVER_KEY": SERVER, "ANTHROPIC_API_KEY_FILE": "/nowhere"}, OWN, False, SERVER),
        ({"CORTEX_SERVER_KEY": SERVER, "ANTHROPIC_API_KEY": VENDOR}, OWN, True, FILE),
        ({"CORTEX_SERVER_KEY": SERVER, "ANTHROPIC_API_KEY": VENDOR}, "", False, VENDOR),
        ({"CORTEX_SERVER_KEY": SERVER, "ANTHROPIC_API_KEY": VENDOR}, "https://api.anthropic.com", False, VENDOR),
        ({"CORTEX_SERVER_KEY": SERVER}, "", False, None),
        ({"CORTEX_SERVER_KEY": " ", "ANTHROPIC_API_KEY": VENDOR}, OWN, False, VENDOR),
        # As from Anthropic's SDK: gateways are opened by these variables.
        ({"ANTHROPIC_API_KEY": VENDOR}, OWN, False, VENDOR),
        ({"ANTHROPIC_API_KEY": VENDOR}, GATEWAY, False, VENDOR),
        ({"ANTHROPIC_AUTH_TOKEN": VENDOR}, GATEWAY, False, VENDOR),
    ],
)
@pytest.mark.parametrize("by_variable", [False, True])
def test_the_key_that_is_sent_to_an_address(
    environ: dict[str, str], base_url: str, in_file: bool, sent: str | None, by_variable: bool, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(FILE)
    location = ProviderLocation(
        base_url="" if by_variable else base_url, key_file=str(tmp_path / "key") if in_file else "", model="m"
    )
    environ = environ | ({"ANTHROPIC_BASE_URL": base_url} if by_variable else {})
    if sent is None:
        with pytest.raises(CredentialError, match=r"no key .* for --model m: set ANTHROPIC_API_KEY.*--base-url"):
            credential_of(location, environ)
        return
    found = credential_of(location, environ)
    assert found.api_key + found.auth_token == sent


async def test_a_call_without_a_key_holds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", VENDOR)  # that of the branch's process is nobody's business
    for environ, header in (({}, None), ({"CORTEX_SERVER_KEY": SERVER}, f"Bearer {SERVER}")):
        async with scripted(always(http(MESSAGE))) as server:
            model = AnthropicModel(credential_of(ProviderLocation(base_url=server.url), environ))
            reply = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
            await model.close()
        assert isinstance(reply, Reply), reply
        assert (server.asked[0].headers.get("authorization"), server.asked[0].headers.get("x-api-key")) == (header, None)


def test_the_key_of_a_server_leaves_the_environment_and_is_not_shown() -> None:
    environ = {"CORTEX_SERVER_KEY": SERVER, "SOMEBODYS_COPY": SERVER, "ANTHROPIC_API_KEY": VENDOR, "COPY": VENDOR}
    environ["ANTHROPIC_BASE_URL"] = OWN
    keys = keys_in(environ)
    shown = " ".join(each.redactor()(f"{SERVER} {VENDOR}") for each in (*keys, *hidden_in(environ)))
    assert shown.count(SERVER) < len(keys) + len(hidden_in(environ))
    scrub(environ, *keys)
    assert environ == {"ANTHROPIC_BASE_URL": OWN}
