"""Remedies of blocked routes: what a person can do, as clauses at the end of a failure's message."""

from __future__ import annotations

import re
from typing import Final

MODEL: Final = "give a --model that is served there"
"""Remedy where a server does not have the model."""
ADDRESS: Final = "see that --base-url names a server of the Messages API, or give --api chat for chat completions"
"""Remedy where a server answers that does not serve the API."""
OTHER_API: Final = "give --api responses, or another --model"
"""Remedy where the Responses API alone serves a model."""
CHAT_ADDRESS: Final = "see that --base-url names a server of OpenAI's chat completions, or leave out --api chat"
"""Remedy where a server answers that does not serve that API."""
PAGE: Final = "see that --base-url and the key are right, and that no proxy is in the way (HTTPS_PROXY, NO_PROXY)"
"""Remedy where a call is refused by a page, which is of a proxy or a gateway rather than of the API."""
LIMIT: Final = "the provider says that trying again does not help (x-should-retry), so put the account's limit right"
"""Remedy where a limit is reached that waiting does not lift."""
TLS: Final = "give --base-url with https://, which that port wants"
"""Remedy where a port of HTTPS was called by http."""
CLOSED: Final = "see that the server runs, or give --base-url with https:// if it wants that"
"""Remedy where a server closes each connection by http without an answer, as some do at a port of HTTPS."""
NO_TLS: Final = "give --base-url with http://, or the port that takes https"
"""Remedy where a server answers a handshake of TLS with something else."""
PROXY_NO_TLS: Final = "it is the proxy: give its address with http:// (HTTPS_PROXY), not --base-url"
"""The same of a proxy, whose own connection is plain also for https (CONNECT, RFC 9110, 9.3.6)."""
SCHEMA: Final = "correct the schema, or have it asked in words (--schema-as prompt)"
"""Remedy where a server refuses the schema of an answer, or schemas altogether."""
OLLAMA: Final = "if it is Ollama, leave out the path of its own API: give --base-url {}"
"""Remedy at a path of Ollama's own API (https://docs.ollama.com/api; https://docs.ollama.com/openai), with the address
without it."""
DEPLOYMENT: Final = "for a deployment of Azure give --provider azure, --base-url {}, and its name as --model"
"""Remedy at the address of a deployment of Azure's, as its portal shows it, with the address without it: the API of
deployments wants an `api-version` in each request, the one at `/openai/v1` wants none
(https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle)."""
BATCHES: Final = "leave out --via batches, or see that --base-url names a server that has message batches"
"""Remedy where a server has no message batches."""
BOUND: Final = "give a larger --max-output-tokens"
"""Remedy where an error stands in place of a reply that its bound has cut."""

RESPONSES_ADDRESS: Final = (
    "see that --base-url names a server of OpenAI's Responses API, or give --api chat for chat completions"
)
"""Remedy where a server answers that does not serve that API."""

_OF_OLLAMA: Final = re.compile(r"/api(?:/chat|/generate|/tags)?$")
_OF_DEPLOYMENT: Final = re.compile(r"/openai/deployments/[^/]+(?:/.*)?$")
_NAMED: Final = re.compile(r"--(?:api|base-url|model|via)\b|\bSSL_CERT_FILE\b")


def for_address(url: str, otherwise: str = "") -> str:
    """Return what to do about an address that answers no call, as far as its path tells; ``otherwise`` if it tells
    nothing. A path of Ollama's is one of other servers too (https://openrouter.ai/api; Open WebUI,
    https://docs.openwebui.com/reference/api-endpoints), so ``otherwise`` stands behind its remedy."""
    if found := _OF_DEPLOYMENT.search(url):
        return DEPLOYMENT.format(url[: found.start()])
    if found := _OF_OLLAMA.search(url):
        return OLLAMA.format(url[: found.start()]) + (f"; else {otherwise}" if otherwise else "")
    return otherwise


def absent_model(message: str, name: str) -> str:
    """Return what is wrong where a server says only that it is about this model; empty for any other message.

    Anthropic: ``model: NAME``, with the type ``not_found_error`` (https://platform.claude.com/docs/en/api/errors).
    """
    return f"there is no model {name}" if name and message == f"model: {name}" else ""


def has_remedy(message: str) -> bool:
    """Return whether the message of a blocked route says already what to do, so that no general advice is due."""
    return _NAMED.search(message) is not None
