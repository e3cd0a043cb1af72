"""Base URLs as users write them: each is understood, or refused in one line without a secret."""

from __future__ import annotations

import pytest

from actors.providers.credentials.account import ProviderLocation, credential_of
from actors.providers.credentials.base_url import read_base_url, read_metrics_url
from actors.providers.credentials.credential import CredentialError
from actors.providers.registry import MESSAGES_PATHS, row_of

# The first form is that of Anthropic's SDK, the second that of OpenAI's. Some of the others stand in the issues that
# the docstring of `read_base_url` names; the rest are variations without a source.
UNDERSTOOD = {
    "http://gpu:8000": "http://gpu:8000",
    "http://gpu:8000/v1": "http://gpu:8000",
    "http://gpu:8000/": "http://gpu:8000",
    "http://gpu:8000/v1/": "http://gpu:8000",
    "http://gpu:8000/v1//": "http://gpu:8000",
    "http://gpu:8000/v1/messages": "http://gpu:8000",
    "http://gpu:8000/v1/messages/": "http://gpu:8000",
    "http://gpu:8000/v1/messages/count_tokens": "http://gpu:8000",
    "http://gpu:8000/v1/chat/completions": "http://gpu:8000",
    "http://gpu:8000/v1/v1/messages": "http://gpu:8000",
    "http://gpu:8000/v1?": "http://gpu:8000",
    "http://gpu:8000/v1#top": "http://gpu:8000",
    "HTTP://GPU:8000/V1": "http://gpu:8000",
    " 'http://gpu:8000/v1' ": "http://gpu:8000",
    "gpu:8000/v1": "http://gpu:8000",
    "gpu": "http://gpu",
    "//gpu:8000": "http://gpu:8000",
    "localhost:8000": "http://localhost:8000",
    "LOCALHOST:8000/v1/messages": "http://localhost:8000",
    "127.0.0.1:11434/v1": "http://127.0.0.1:11434",
    "10.1.2.3:8000": "http://10.1.2.3:8000",
    "vllm.ml.internal:8000/v1": "http://vllm.ml.internal:8000",
    "me:pass-word@gpu:8000/v1": "http://me:pass-word@gpu:8000",
    "http://[::1]:8000/v1": "http://[::1]:8000",
    "[::1]:8000/v1": "http://[::1]:8000",
    "::1": "http://[::1]",
    "https://gateway.example/llm/v1": "https://gateway.example/llm",
    "https://gateway.example/v1/account/anthropic": "https://gateway.example/v1/account/anthropic",
    "https://api.deepseek.com/anthropic/": "https://api.deepseek.com/anthropic",
    "https://me:pass-word@gateway.example/v1": "https://me:pass-word@gateway.example",
    "https://bücher.example/v1": "https://bücher.example",
    "": "",
    "  ": "",
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), UNDERSTOOD.items())
def test_an_address_is_understood(text: str, expected: str) -> None:
    found = read_base_url("--base-url", text, MESSAGES_PATHS)
    assert found == expected
    assert read_base_url("--base-url", found, MESSAGES_PATHS) == found  # a second pass changes nothing


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gateway.example/v1", "has no scheme: give https://gateway.example/v1"),
        ("me:secretvalue@gateway.example", "has no scheme: give https://…@gateway.example"),
        ("ftp://gpu:8000", "must be an http:// or https:// URL"),
        ("unix:///run/vllm.sock", "must be an http:// or https:// URL"),
        ("http:/gpu:8000", "must be"),
        ("http:gpu", "must be"),
        ("http//gpu:8000", "must be"),
        ("http://", "must be"),
        ("http:///v1", "must be"),
        ("http://gpu:80a0", "must be"),
        ("http://gpu:99999", "must be"),
        ("http://gpu:0", "must be"),
        ("http://[::1", "must be"),
        ("http://[gpu]:8000", "must be"),
        ("http://${HOST}:8000", "must be"),
        ("http://gpu 8000", "must be"),
        ("http://gpu\n:8000", "must be"),
        ("http:\\\\gpu", "must be"),
        ("http://gpu:8000/v1?v=1", "has a query after 'http://gpu:8000/v1': leave it out, since a path is appended"),
        ("http://gpu:8000/v1?key=secretvalue", "has a query after 'http://gpu:8000/v1': leave it out, and set a key in"),
        ("http://gpu:8000/v1?a=1&api_key=secretvalue", "CORTEX_SERVER_KEY"),
        ("https://x.openai.azure.com/openai/deployments/gpt/chat/completions?api-version=2024-10-21",
         "give --provider azure, --base-url https://x.openai.azure.com, and its name as --model"),
        ("https://openrouter.ai/api?key=secretvalue", "give --base-url https://openrouter.ai; else leave it out, and set a key in"),
        ("https://user:secretvalue@:8000", "must be"),
        ("https://user:secretvalue@[x", "must be"),
        ("/v1", "must be"),
    ],
)
def test_any_other_address_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(CredentialError) as caught:
        read_base_url("--base-url", text, MESSAGES_PATHS)
    line = str(caught.value)
    assert line.startswith("--base-url ") and words in line
    assert "\n" not in line and "secretvalue" not in line


def test_an_address_of_a_cloud_keeps_its_path() -> None:
    # The base URL of Vertex AI in the SDK ends in /v1.
    assert row_of("vertex").appended == row_of("bedrock").appended == ()


@pytest.mark.parametrize("location", [ProviderLocation(base_url="gpu:8000/v1"), ProviderLocation()])
def test_option_and_variable_are_read_alike(location: ProviderLocation) -> None:
    environ = {"ANTHROPIC_API_KEY": "sk-made-up-0123456789", "ANTHROPIC_BASE_URL": "HTTP://gpu:8000/v1/messages"}
    assert credential_of(location, environ).base_url == "http://gpu:8000"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://gpu:8000/metrics", "http://gpu:8000/metrics"),
        ("http://gpu:8000", "http://gpu:8000/metrics"),
        ("http://gpu:8000/", "http://gpu:8000/metrics"),
        ("http://gpu:8000/v1/", "http://gpu:8000/metrics"),
        ("http://gpu:8000/metrics?", "http://gpu:8000/metrics"),
        ("gpu:9090", "http://gpu:9090/metrics"),
        ("https://gateway.example/gpu-1/metrics", "https://gateway.example/gpu-1/metrics"),
    ],
)
def test_an_address_of_metrics_is_understood(text: str, expected: str) -> None:
    assert read_metrics_url("the address", text) == expected
    assert read_metrics_url("the address", expected) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be an http:// or https:// URL"), ("ftp://gpu/metrics", "must be"), ("gateway.example", "has no scheme"),
        ("http://gpu/metrics?token=secretvalue", "holds a query, which would be stored"),
        ("http://me:secretvalue@gpu/metrics", "holds a user or password, which would be stored"),
    ],
)
def test_an_address_of_metrics_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(CredentialError, match=words) as raised:
        read_metrics_url("the address", text)
    assert "secretvalue" not in str(raised.value)
