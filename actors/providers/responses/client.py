"""Client of the Responses API, for OpenAI and Azure, and any server of `--base-url` with `--api responses`. All but the
form of requests and answers is that of the client of chat completions."""

from __future__ import annotations

import re
from functools import partial
from typing import Final, NamedTuple

from actors.providers.chat_completions.client import declined
from actors.providers.chat_completions.errors import ChatFailures
from actors.providers.chat_completions.rate_limit_headers import rate_limits, reports_limits
from actors.providers.client.key_dialect import DEFAULT, KeyDialect
from actors.providers.client.keyed_model import KeyedModel
from actors.providers.client.wire_form import WireForm
from actors.providers.credentials.account import ClientSpec
from actors.providers.registry import load, row_of
from actors.providers.remedies import RESPONSES_ADDRESS
from actors.providers.responses.request import responses_body
from actors.providers.responses.response import read_response
from actors.providers.responses.stream import ResponseAssembler
from policies.failures.failure import Failure, FailureKind

RESPONSES: Final = "/responses"
_UNREADABLE_THOUGHTS: Final = re.compile(r"\bencrypted[_ ]content\b", re.IGNORECASE)
"""Words of a refusal of thoughts that another organisation or server has encrypted: "The encrypted content … could not
be verified.", code ``invalid_encrypted_content`` (https://github.com/openai/codex/issues/8145)."""


class ResponsesVariant(NamedTuple):
    """Spelling of a request of the Responses API."""

    thoughts: bool = True
    """False: thoughts of earlier turns are left out."""


def _body(body: bytes, streamed: bool, variant: ResponsesVariant) -> bytes:
    return responses_body(body, streamed, variant.thoughts)


def _other(variant: ResponsesVariant, outcome: Failure) -> ResponsesVariant | None:
    refused = outcome.kind is FailureKind.REJECTED and _UNREADABLE_THOUGHTS.search(outcome.message)
    return ResponsesVariant(thoughts=False) if refused and variant.thoughts else None


RESPONSES_FORM: Final = WireForm(
    path=RESPONSES, body=_body, read=read_response, stream=ResponseAssembler,
    failures=partial(ChatFailures, remedy=RESPONSES_ADDRESS), reports_limits=reports_limits, rate_limits=rate_limits,
    other=_other, settled=declined,
)  # fmt: skip


def model_of(spec: ClientSpec) -> KeyedModel:
    """Return the client for an account: ``Provider.client`` of every provider that serves the Responses API."""
    assert spec.credential is not None, "the account of such a provider has a credential"
    row = row_of(spec.provider or spec.credential.provider)
    dialect: KeyDialect = load(row.dialect) if row.dialect else DEFAULT
    return KeyedModel(RESPONSES_FORM, dialect, spec, row, spec.credential, ResponsesVariant())
