"""Client of chat completions, for every provider whose row names it (`actors.providers.registry`), and any server of
`--base-url` with `--api chat`. Requests go over the same connections as those of the Messages client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from actors.providers.batches.batching_model import BatchingModel
from actors.providers.batches.file_batches import LineForm
from actors.providers.chat_completions.batch_results import read_chat
from actors.providers.chat_completions.dialect import DEFAULT, MESSAGES_COUNTER, ChatDialect
from actors.providers.chat_completions.errors import ChatFailures, asks_for_field, refuses_field
from actors.providers.chat_completions.rate_limit_headers import rate_limits, reports_limits
from actors.providers.chat_completions.request import (
    COMPLETION_BOUND,
    TOKENS_BOUND,
    ChatVariant,
    chat_body,
    fields_with,
    written_body,
)
from actors.providers.chat_completions.response import read_completion, refusal, with_whole
from actors.providers.chat_completions.stream import ChunkAssembler
from actors.providers.chat_completions.thinking_mode import (
    SWITCH,
    THOUGHTS_FIELD,
    SwitchedTranslator,
    misses_thoughts,
    refuses_force,
)
from actors.providers.client.canonical_request import model_in
from actors.providers.client.wire_form import WireForm
from actors.providers.credentials.account import ClientSpec
from actors.providers.credentials.credential import Credential
from actors.providers.registry import Provider, is_own_server, load, row_of
from cortex.values.chat_form.request import CHAT_MARK, may_stream
from cortex.values.reply import UNKNOWN_USAGE, Reply, Usage
from policies.failures.error_vocabulary import NO_SUCH_PATH
from policies.failures.failure import Failure, FailureKind
from policies.failures.told_retry import refuses_request

COMPLETIONS: Final = "/chat/completions"
MODELS: Final = "/models"
_OTHER_BOUND: Final = {COMPLETION_BOUND: TOKENS_BOUND, TOKENS_BOUND: COMPLETION_BOUND}
_BILLED_REFUSALS: Final = frozenset({"content_filter", "ResponsibleAIPolicyViolation"})
"""Errors of Azure's filter, for which the prompt is billed
(https://learn.microsoft.com/azure/ai-foundry/openai/how-to/manage-costs)."""


_UNSIGNED: Final = re.compile(r"\bmissing\b.{1,40}\bthought_?signature\b", re.IGNORECASE)
"""Words of Gemini's refusal of a tool call without its signature (`tool_signatures`)."""


def _other(variant: ChatVariant, outcome: Failure) -> ChatVariant | None:
    if variant.counts_streams and refuses_field(outcome, "stream_options"):
        return variant._replace(counts_streams=False)
    if variant.signed is not False and refuses_field(outcome, "extra_content"):
        return variant._replace(signed=False)
    if variant.signed and refuses_request(outcome) and _UNSIGNED.search(outcome.message):
        return variant._replace(signed=None)
    if variant.forced is not False and refuses_force(outcome):
        switched = isinstance(variant.translator, SwitchedTranslator)
        return variant._replace(forced=None if switched and variant.forced else False)
    if not variant.thoughts and misses_thoughts(outcome):
        return variant._replace(thoughts=True)
    if variant.thoughts and refuses_field(outcome, THOUGHTS_FIELD):
        return variant._replace(thoughts=False)
    if isinstance(variant.translator, SwitchedTranslator) and refuses_field(outcome, SWITCH):
        return variant._replace(translator=None)
    other = _OTHER_BOUND[variant.bound]
    unlike = refuses_field(outcome, variant.bound) or asks_for_field(outcome, other)
    return variant._replace(bound=other) if unlike else None


def _other_as_written(variant: ChatVariant, outcome: Failure) -> ChatVariant | None:
    """Return the other spelling of a request that its user wrote, of which only the bound and the usage are spelled."""
    other = _other(variant, outcome)
    spelled = other is not None and (other.bound, other.counts_streams) != (variant.bound, variant.counts_streams)
    return other if spelled else None


def _in_lines(variant: ChatVariant) -> ChatVariant:
    """Return the spelling without signatures: they are Google's, whose batches have a form of their own."""
    return variant._replace(signed=False)


def declined(outcome: Failure, body: bytes) -> Reply | Failure:
    """Return a refusal for a prompt that a filter of the provider's declined, any other failure as it is."""
    if outcome.kind is not FailureKind.REFUSED:
        return outcome
    worked = 200 <= outcome.status < 300  # the model had begun: such an answer may be billed
    usage = UNKNOWN_USAGE if worked or outcome.error_type in _BILLED_REFUSALS else Usage()
    return refusal(model_in(body), outcome.message, usage)


def _whole(body: bytes, charset: str) -> Reply:
    return with_whole(read_completion(body, charset), body)


GIVEN_FORM: Final = WireForm(
    mark=CHAT_MARK, path=COMPLETIONS, body=written_body, read=_whole, stream=ChunkAssembler, failures=ChatFailures,
    reports_limits=reports_limits, rate_limits=rate_limits, other=_other_as_written, settled=declined,
    may_stream=may_stream,
)  # fmt: skip
"""Form of requests that were written as chat completions: their replies hold the completion too."""
CHAT_FORM: Final = WireForm(
    path=COMPLETIONS, body=chat_body, read=read_completion, stream=ChunkAssembler, failures=ChatFailures,
    reports_limits=reports_limits, rate_limits=rate_limits, other=_other, settled=declined, given=GIVEN_FORM,
    in_lines=_in_lines,
)  # fmt: skip


class ChatModel(BatchingModel):
    """Model (`actors.ports.model.Model`) behind chat completions. The API has no counter of tokens; a server may have
    one beside it (`ChatDialect.counter`, `MESSAGES_COUNTER`). One without it is asked for it once."""

    def __init__(self, spec: ClientSpec, row: Provider, credential: Credential) -> None:
        dialect: ChatDialect = load(row.dialect) if row.dialect else DEFAULT
        own = not credential.base_url  # of its own hosts alone it is known what they take
        special = dialect.efforts is not None or dialect.switched
        translator = fields_with(dialect.efforts, dialect.switched) if special else None
        bound = dialect.bound if own else TOKENS_BOUND
        variant = ChatVariant(bound, translator=translator, thoughts=own and dialect.thoughts)
        lines = LineForm(endpoint=dialect.batch_endpoint, body=self.line_body, empty="messages", read=read_chat)
        super().__init__(CHAT_FORM, dialect, spec, row, credential, variant, load(dialect.batches), lines)
        self._counter = dialect.counter or (MESSAGES_COUNTER if is_own_server(credential.base_url, row) else "")

    @property
    def counts_tokens(self) -> bool:
        """False if ``count_tokens`` returns None in any case."""
        return bool(self._counter)

    async def count_tokens(self, body: bytes) -> int | None:
        """Return the input tokens of a request by the server's count; None where it has none, for any reason."""
        return await self._counted(self._counter, body, self._refused_to_count) if self._counter else None

    def _refused_to_count(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        if status in NO_SUCH_PATH and self.refusal_of(status, headers, data).kind is not FailureKind.BLOCKED:
            self._counter = ""


def model_of(spec: ClientSpec) -> ChatModel:
    """Return the client for an account: ``Provider.client`` of every provider that serves chat completions."""
    assert spec.credential is not None, "the account of such a provider has a credential"
    return ChatModel(spec, row_of(spec.provider or spec.credential.provider), spec.credential)
