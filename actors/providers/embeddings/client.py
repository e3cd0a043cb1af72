"""Client of embeddings, for every provider whose row names it (`actors.providers.registry`), and any server of
`--base-url`. Requests go over the same connections as those of chat completions.
"""

from __future__ import annotations

from typing import Final

import msgspec

from actors.providers.chat_completions.dialect import DEFAULT, ChatDialect
from actors.providers.chat_completions.errors import ChatFailures
from actors.providers.chat_completions.rate_limit_headers import rate_limits, reports_limits
from actors.providers.chat_completions.stream import ChunkAssembler
from actors.providers.client.keyed_model import KeyedModel
from actors.providers.client.wire_form import WireForm
from actors.providers.credentials.account import ClientSpec
from actors.providers.embeddings.wire import BASE64, other_format, read_list, read_vectors, vectors_body
from actors.providers.registry import load, row_of
from cortex.values.chat_form.request import EMBEDDINGS_MARK, fields_of

EMBEDDINGS: Final = "/embeddings"

def _as_written(body: bytes, streamed: bool, variant: str) -> bytes:
    return msgspec.json.encode(fields_of(body))


GIVEN_FORM: Final = WireForm(
    mark=EMBEDDINGS_MARK, path=EMBEDDINGS, body=_as_written, read=read_list, stream=ChunkAssembler,
    failures=ChatFailures, reports_limits=reports_limits, rate_limits=rate_limits, may_stream=lambda body: False,
    bytes_a_token=None,
)  # fmt: skip
"""Form of requests that their users wrote: sent as they stand, and replies hold the list of vectors as it came."""
EMBEDDING_FORM: Final = WireForm(
    path=EMBEDDINGS, body=vectors_body, read=read_vectors, stream=ChunkAssembler, failures=ChatFailures,
    reports_limits=reports_limits, rate_limits=rate_limits, other=other_format, given=GIVEN_FORM, bytes_a_token=None,
)  # fmt: skip


def model_of(spec: ClientSpec) -> KeyedModel:
    """Return the client for an account: ``Provider.embeddings`` of every provider that serves them."""
    assert spec.credential is not None, "the account of such a provider has a credential"
    row = row_of(spec.provider or spec.credential.provider)
    dialect: ChatDialect = load(row.dialect) if row.dialect else DEFAULT
    return KeyedModel(EMBEDDING_FORM, dialect, spec, row, spec.credential, BASE64)
