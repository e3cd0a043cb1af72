"""Client of the Responses API, for OpenAI and Azure, and any server of `--base-url` with `--api responses`. All but the
form of requests and answers is that of the client of chat completions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from actors.providers.batches.batching_model import BatchingModel
from actors.providers.batches.file_batches import LineForm
from actors.providers.chat_completions.batches import OpenAIBatches
from actors.providers.chat_completions.client import declined
from actors.providers.chat_completions.errors import ChatFailures, refuses_field
from actors.providers.chat_completions.rate_limit_headers import rate_limits, reports_limits
from actors.providers.chat_completions.response import with_whole
from actors.providers.client.key_dialect import DEFAULT, KeyDialect
from actors.providers.client.wire_form import WireForm
from actors.providers.credentials.account import ClientSpec
from actors.providers.credentials.credential import Credential
from actors.providers.registry import Provider, load, row_of
from actors.providers.remedies import RESPONSES_ADDRESS
from actors.providers.responses.request import USUAL, ResponsesVariant, counted_body, responses_body, written_body
from actors.providers.responses.response import read_response
from actors.providers.responses.stream import ResponseAssembler
from cortex.values.chat_form.completion import RESPONSE
from cortex.values.chat_form.request import RESPONSES_MARK
from cortex.values.reply import Reply
from policies.failures.error_vocabulary import NO_SUCH_PATH
from policies.failures.failure import Failure, FailureKind
from policies.failures.told_retry import refuses_request

RESPONSES: Final = "/responses"
COUNTER: Final = "/responses/input_tokens"
"""Path of the counter of tokens, which is free of charge
(https://platform.openai.com/docs/api-reference/responses/input-tokens)."""
_UNREADABLE_THOUGHTS: Final = re.compile(r"\bencrypted[_ ]content\b", re.IGNORECASE)
"""Words of a refusal of thoughts that another organisation or server has encrypted: "The encrypted content … could not
be verified.", code ``invalid_encrypted_content`` (https://github.com/openai/codex/issues/8145)."""
_UNASKED: Final = re.compile(r"\bencrypted content is not supported\b|\breasoning\.encrypted_content\b", re.IGNORECASE)
"""Words of a refusal to tell thoughts in encrypted form: "Encrypted content is not supported with this model.", from
models that do not reason (pydantic/pydantic-ai#2867, OpenHands/software-agent-sdk#1208) and some at Azure
(pydantic/pydantic-ai#2915, earendil-works/pi#6228); a server that knows other values names this one."""


def _other(variant: ResponsesVariant, outcome: Failure) -> ResponsesVariant | None:
    if not refuses_request(outcome):
        return None
    if variant.asked and (_UNASKED.search(outcome.message) or refuses_field(outcome, "include")):
        return variant._replace(asked=False)
    unreadable = variant.thoughts and _UNREADABLE_THOUGHTS.search(outcome.message)
    return variant._replace(thoughts=False) if unreadable else None


def _in_lines(variant: ResponsesVariant) -> ResponsesVariant:
    """Return the spelling that asks for no thoughts, since most models that there are have none to tell."""
    return variant._replace(asked=False)


def _as_written(body: bytes, streamed: bool, variant: ResponsesVariant) -> bytes:
    return written_body(body, streamed)


def _whole(body: bytes, charset: str) -> Reply:
    return with_whole(read_response(body, charset), body, RESPONSE)


GIVEN_FORM: Final = WireForm(
    mark=RESPONSES_MARK, path=RESPONSES, body=_as_written, read=_whole, stream=ResponseAssembler,
    failures=partial(ChatFailures, remedy=RESPONSES_ADDRESS), reports_limits=reports_limits, rate_limits=rate_limits,
    settled=declined, bytes_a_token=None,
)  # fmt: skip
"""Form of requests that were written for the Responses API: their replies hold the response too, with the pictures and
texts of tools that the provider runs, which are no tokens of the reply."""
RESPONSES_FORM: Final = WireForm(
    path=RESPONSES, body=responses_body, read=read_response, stream=ResponseAssembler,
    failures=partial(ChatFailures, remedy=RESPONSES_ADDRESS), reports_limits=reports_limits, rate_limits=rate_limits,
    other=_other, settled=declined, given=GIVEN_FORM, in_lines=_in_lines,
)  # fmt: skip


def _read(body: bytes, kept: bool) -> Reply:
    return _whole(body, "") if kept else read_response(body)



class ResponsesModel(BatchingModel):
    """Model (`actors.ports.model.Model`) behind the Responses API. A server without its counter of tokens is asked for
    it once."""

    def __init__(self, spec: ClientSpec, row: Provider, credential: Credential) -> None:
        dialect: KeyDialect = load(row.dialect) if row.dialect else DEFAULT
        lines = LineForm(endpoint=f"/v1{RESPONSES}", body=self.line_body, empty="input", read=_read)
        super().__init__(RESPONSES_FORM, dialect, spec, row, credential, USUAL, OpenAIBatches, lines)
        self._counter_missing = False

    @property
    def counts_tokens(self) -> bool:
        """False if ``count_tokens`` returns None in any case."""
        return not self._counter_missing

    async def count_tokens(self, body: bytes) -> int | None:
        """Return the input tokens of a request by the server's count; None where it has none, for any reason."""
        if self._counter_missing:
            return None
        assert isinstance(self._variant, ResponsesVariant)
        try:
            asked = counted_body(body, self._variant)
        except Exception:  # the call will say what is wrong with the request
            return None
        return await self._counted(COUNTER, asked, self._refused_to_count)

    def _refused_to_count(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        unknown_model = self.refusal_of(status, headers, data).kind is FailureKind.BLOCKED
        self._counter_missing = status in NO_SUCH_PATH and not unknown_model


def model_of(spec: ClientSpec) -> ResponsesModel:
    """Return the client for an account: ``Provider.client`` of every provider that serves the Responses API."""
    assert spec.credential is not None, "the account of such a provider has a credential"
    return ResponsesModel(spec, row_of(spec.provider or spec.credential.provider), spec.credential)
