"""The credential: what it takes from an environment, and that nobody sees it."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from rich.console import Console

from actors.providers.anthropic.account import from_environ
from actors.providers.credentials.account import key_file
from actors.providers.credentials.credential import (
    REDACTED,
    CloudPlatform,
    Credential,
    CredentialError,
    without_password,
)
from actors.providers.credentials.environment import scrub
from actors.providers.registry import DEFAULT, row_of

ROW = row_of(DEFAULT)
KEY = "sk-ant-api03-verysecretkey-0123456789"


def test_nothing_that_opens_a_door_is_no_credential() -> None:
    assert from_environ({}) is None
    assert from_environ({"ANTHROPIC_API_KEY": "", "ANTHROPIC_BASE_URL": "http://x"}) is None
    assert from_environ({"ANTHROPIC_API_KEY": " \n"}) is None
    assert from_environ({"ANTHROPIC_CUSTOM_HEADERS": "x-team: blue"}) is None


def test_everything_in_the_environment_is_read() -> None:
    found = from_environ(
        {
            "ANTHROPIC_API_KEY": f"{KEY}\n",
            "ANTHROPIC_AUTH_TOKEN": "token",
            "ANTHROPIC_CUSTOM_HEADERS": "x-team: blue\nnonsense\n X-Key:a: b\nx-TEAM: red",
            "ANTHROPIC_BASE_URL": "https://gateway.example/llm",
            "HTTPS_PROXY": "upper:1",
            "https_proxy": "lower.example:2",
            "ALL_PROXY": "http://all.example:3",
            "NO_PROXY": "localhost",
            "SSL_CERT_FILE": "/ca.pem",
            "SSL_CERT_DIR": "/ca",
        }
    )
    assert found == Credential(
        api_key=KEY,
        custom_headers=(("x-TEAM", "red"), ("X-Key", "a: b")),
        base_url="https://gateway.example/llm",
        https_proxy="http://lower.example:2",
        http_proxy="http://all.example:3",
        no_proxy="localhost",
        ca_file="/ca.pem",
        ca_dir="/ca",
    )


def test_a_token_or_a_header_is_a_credential_too() -> None:
    token = from_environ({"ANTHROPIC_AUTH_TOKEN": "token"})
    header = from_environ({"ANTHROPIC_CUSTOM_HEADERS": "X-API-Key: abc"})
    assert token == Credential(auth_token="token")
    assert header == Credential(custom_headers=(("X-API-Key", "abc"),))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ANTHROPIC_API_KEY", "sk-ant-a\nb"),
        ("ANTHROPIC_AUTH_TOKEN", "schlüssel"),
        ("ANTHROPIC_CUSTOM_HEADERS", "bad name: secretvalue"),
        ("ANTHROPIC_BASE_URL", "gateway.example"),
        ("ANTHROPIC_BASE_URL", "http://user:secretvalue@"),
        ("ANTHROPIC_BASE_URL", "https://[secretvalue"),
        ("HTTPS_PROXY", "socks5://user:secretvalue@x:1"),
    ],
)
def test_what_cannot_be_sent_is_named_without_its_value(name: str, value: str) -> None:
    with pytest.raises(CredentialError) as caught:
        from_environ({"ANTHROPIC_API_KEY": KEY} | {name: value})
    text = str(caught.value)
    assert name in text and "\n" not in text
    assert "user:" not in text and "schl" not in text and "sk-ant" not in text


def test_a_key_in_a_file_is_read_where_none_stands_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"  {KEY}\n")
    (tmp_path / "..data").symlink_to(file)  # as Kubernetes mounts it
    facts = {"ANTHROPIC_API_KEY_FILE": f"{tmp_path}/..data\n", "ANTHROPIC_AUTH_TOKEN": "token"}
    found = Credential(api_key=KEY, key_file=f"{tmp_path}/..data")
    assert from_environ(facts) == found  # a link stays one: it is moved when the key is renewed
    assert from_environ(facts | {"ANTHROPIC_API_KEY": " "}) == found
    assert found.fingerprint == Credential(api_key=KEY).fingerprint
    assert from_environ(facts | {"ANTHROPIC_API_KEY": "own"}) == Credential(api_key="own")
    assert key_file(ROW, facts) == f"{tmp_path}/..data"
    assert key_file(ROW, facts | {"ANTHROPIC_API_KEY": "own"}) == ""
    scrub(facts)
    assert facts == {}  # whoever knows the path could read it


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file"),
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (f"{KEY}\n{KEY}\n".encode(), "several lines"),
        (KEY.encode() + b"\xff\xfe", "cannot be sent"),
    ],
)
def test_a_file_without_one_key_is_named_with_what_to_do(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "mounted"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(CredentialError) as caught:
        from_environ({"ANTHROPIC_API_KEY_FILE": str(file)})
    line = str(caught.value)
    assert line.startswith(f"ANTHROPIC_API_KEY_FILE: {file}") and said in line
    assert "\n" not in line and "sk-ant" not in line


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(
            CredentialError, match=r"^ANTHROPIC_API_KEY_FILE: \S+( is not a regular file|: is a directory)$"
        ):
            from_environ({"ANTHROPIC_API_KEY_FILE": str(path)})


def test_a_key_given_in_place_of_its_path_is_not_shown() -> None:
    with pytest.raises(CredentialError) as caught:
        from_environ({"ANTHROPIC_API_KEY_FILE": f"{KEY}\n{KEY}"})
    assert KEY not in str(caught.value) and "\n" not in str(caught.value)


def test_it_shows_its_fingerprint_and_no_more() -> None:
    credential = Credential(
        api_key=KEY, custom_headers=(("x-gateway", "gateway-secret"),), https_proxy="http://me:pass-word@p:1"
    )
    shown = io.StringIO()
    Console(file=shown, width=200).print(credential, [credential], {"a": credential})
    for text in (repr(credential), str(credential), f"{credential}", repr([credential]), shown.getvalue()):
        assert credential.fingerprint in text
        assert KEY not in text and "secret" not in text and "pass-word" not in text


def test_the_fingerprint_tells_accounts_apart_and_is_short() -> None:
    prints = {
        Credential(api_key="a").fingerprint,
        Credential(api_key="b").fingerprint,
        Credential(auth_token="a").fingerprint,
        Credential(custom_headers=(("authorization", "a"),)).fingerprint,
        Credential(api_key="a", base_url="http://elsewhere").fingerprint,  # the same payer
    }
    assert len(prints) == 4
    assert {len(text) for text in prints} == {12}
    assert Credential(api_key="a").fingerprint == Credential(api_key="a").fingerprint


def test_it_travels_as_a_message() -> None:
    credential = Credential(api_key=KEY, custom_headers=(("a", "b"),), ca_file="/x")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(credential), type=Credential) == credential
    assert msgspec.json.decode(msgspec.json.encode(credential), type=Credential) == credential


def test_every_form_of_a_secret_is_redacted() -> None:
    credential = Credential(
        api_key=KEY,
        custom_headers=(
            ("Authorization", "Bearer gatewaytoken"),
            ("x-odd", "a b/c+d"),
            ("anthropic-beta", "files-2025"),
            ("x-short", "on"),
        ),
        https_proxy="http://me:p%40ssword@proxy:1",
    )
    redact = credential.redactor()
    text = redact(
        f"key {KEY}, gatewaytoken, a b/c+d, a%20b%2Fc%2Bd, p@ssword, p%40ssword, bWU6cEBzc3dvcmQ=, "
        "sk-ant-another-key-of-theirs1, Bearer abc123def456, files-2025, on"
    )
    assert text == ", ".join([f"key {REDACTED}"] + [REDACTED] * 7 + [f"Bearer {REDACTED}", "files-2025", "on"])
    assert redact("Bearer authentication is on; sk-learn") == "Bearer authentication is on; sk-learn"


def test_scrub_leaves_no_secret_behind() -> None:
    environ = {
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_AUTH_TOKEN": "t",
        "ANTHROPIC_CUSTOM_HEADERS": "a: b",
        "ANTHROPIC_BASE_URL": "https://gateway.example",
        "HTTPS_PROXY": "http://me:password@proxy:1",
        "http_proxy": "http://proxy:1",
        "MY_COPY": f"export KEY={KEY}",
        "PATH": "/bin",
    }
    removed = scrub(environ, Credential(api_key=KEY))
    assert removed == (
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_CUSTOM_HEADERS",
        "HTTPS_PROXY",
        "MY_COPY",
    )
    assert environ == {
        "ANTHROPIC_BASE_URL": "https://gateway.example",
        "http_proxy": "http://proxy:1",
        "PATH": "/bin",
    }
    assert scrub(environ) == ()


def test_what_opens_a_cloud_is_scrubbed_and_redacted() -> None:
    environ = {
        "AWS_BEARER_TOKEN_BEDROCK": "b", "ANTHROPIC_FOUNDRY_API_KEY": "f", "CORTEX_API_KEY_FILE": "/mounted",
        "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "it opens object stores, too",
    }  # fmt: skip
    scrub(environ)
    assert set(environ) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    platform = CloudPlatform(
        name="bedrock",
        region="r",
        identity="A",
        secrets=(("secret_key", "a/secret+of"), ("session_token", "token-of-a-session")),
    )
    credential = Credential(platform=platform)
    for shown in (repr(credential), repr(platform), str([platform])):
        assert "secret" not in shown and "token-of" not in shown
    assert credential.redactor()("a/secret+of a%2Fsecret%2Bof token-of-a-session") == " ".join([REDACTED] * 3)
    assert (
        credential.fingerprint
        != Credential(platform=CloudPlatform(name="vertex")).fingerprint
        != Credential().fingerprint
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(credential), type=Credential) == credential


def test_a_renewed_key_is_found_in_its_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "key"
    credential = Credential(api_key=KEY, key_file=str(file), base_url="http://x")
    for content in (None, "", KEY, "two\nlines"):
        if content is not None:
            file.write_text(content)
        assert credential.renewed() is None
    file.write_text("another\n")
    found = credential.renewed()
    assert found == Credential(api_key="another", key_file=str(file), base_url="http://x")
    assert Credential(api_key=KEY).renewed() is None


def test_an_address_is_shown_without_its_password() -> None:
    assert without_password("https://u:p@host:1/a?b") == "https://host:1/a?b"
    assert without_password("u:p@host:1") == "host:1"
    assert without_password("https://host/a@b") == "https://host/a@b"


LONG_KEY = "gw-0a1B2c/3D4e5F+6g7H8i9J"
FORMS: dict[str, Callable[[str], str]] = {
    "as it is": lambda key: key,
    "in capitals": str.upper,
    "in small letters": str.lower,
    "reversed": lambda key: key[::-1],
    "percent-encoded": lambda key: quote(key, safe=""),
    "percent-encoded twice": lambda key: quote(quote(key, safe=""), safe=""),
    "each byte percent-encoded": lambda key: "".join(f"%{each:02X}" for each in key.encode()),
    "a form field": quote_plus,
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of a header": lambda key: base64.b64encode(f"Authorization: Bearer {key}\r\n".encode()).decode(),
    "base64 of a pair": lambda key: base64.b64encode(f"ab:{key}".encode()).decode(),
    "base64 for URLs": lambda key: base64.urlsafe_b64encode(f"a:{key}".encode()).decode(),
    "hex": lambda key: key.encode().hex(),
    "hex of a dump": lambda key: key.encode().hex(" ").upper(),
    "escaped in JSON": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "escaped by number": lambda key: "".join(f"\\u{ord(each):04X}" for each in key),
    "escaped in HTML": lambda key: html.escape(f"<{key}>"),
    "over two lines": lambda key: f"{key[:9]}\n{key[9:]}",
    "over two lines of JSON": lambda key: f"{key[:9]}\\n{key[9:]}",
    "wrapped base64": lambda key: "\n".join(textwrap.wrap(base64.b64encode(key.encode()).decode(), 10)),
    "with a soft hyphen": lambda key: f"{key[:12]}\u00ad{key[12:]}",
    "cut": lambda key: key[:14],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_key_that_comes_back_in_another_form_is_redacted(form: str) -> None:
    redact = Credential(api_key=LONG_KEY).redactor()
    said = FORMS[form](LONG_KEY)
    text = redact(f"the request was refused: x-api-key was {said}" + ("" if form == "cut" else " and no other"))
    assert REDACTED in text and text.startswith("the request was refused: x-api-key was ")
    inside = said[24:-6] if form == "base64 of a header" else said  # what stands before and behind the key may stay
    assert not any(inside[at : at + 9] in text for at in range(len(inside) - 8))


def test_ordinary_text_is_not_taken_for_a_key() -> None:
    redact = Credential(api_key=LONG_KEY).redactor()
    for text in ("", "gw-0a1B", "model m: not found", "0a1b2c" * 50, base64.b64encode(bytes(300)).decode(), "\n" * 500):
        assert redact(text) == text


@pytest.mark.parametrize("unit", ["\\", "\\\\n", "\n", " "])
def test_a_hostile_text_takes_time_by_its_length(unit: str) -> None:
    """By the square of its length, such a text took a minute."""
    redact = Credential(api_key=LONG_KEY).redactor()
    text = f"{LONG_KEY[:9]}{unit * 100_000}."
    assert redact(text) == text
