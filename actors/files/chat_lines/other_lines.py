"""Check of input lines of OpenAI's batch files for its Responses API and its embeddings: a request, or a refusal.

The form is that of ``line``. Every field of the body is sent as it stands over the API of the line, and over no other.
"""

from __future__ import annotations

from typing import Any, Final

from actors.files.batch_request import RowRefused, shown
from actors.files.chat_lines.line import TIERS, OpenAILineRules, asked_bound
from cortex.state.events import Row
from cortex.values.chat_form.request import EMBEDDINGS_MARK, RESPONSES_MARK, written_request

RESPONSES_URLS: Final = frozenset({"/v1/responses"})
EMBEDDINGS_URLS: Final = frozenset({"/v1/embeddings"})
"""Addresses of the APIs in lines, at OpenAI (https://platform.openai.com/docs/guides/batch) and Azure."""
KEPT: Final = ("previous_response_id", "conversation", "prompt", "background")
"""Fields that lead to what is kept at the provider, whose tokens nobody here can bound, or leave the answer there
(https://platform.openai.com/docs/api-reference/responses/create)."""
INPUTS_MAX: Final = 2_048
"""Texts of a request at most (https://platform.openai.com/docs/api-reference/embeddings/create)."""
_BOUND: Final = "max_output_tokens"


class ResponsesLineRules(OpenAILineRules):
    """Rules of lines of the Responses API."""

    form = '{"custom_id": "...", "method": "POST", "url": "/v1/responses", "body": {...}}'
    urls = RESPONSES_URLS
    api = "the Responses API"

    def request(self, key: str, params: dict[str, Any]) -> Row:
        """Return the row of a request. Raises `RowRefused`."""
        fields = {name: value for name, value in params.items() if name != "stream"}
        if params.get("stream"):
            raise RowRefused("stream is true: a result line holds a whole response; leave stream out")
        if kept := next((name for name in KEPT if fields.get(name)), ""):
            raise RowRefused(f"{kept} is given: a line holds all that it asks and is answered at once: leave it out")
        given = fields.get("input")
        if not given or type(given) not in (str, list):
            raise RowRefused(f"input is {'missing' if given is None else shown(given)}: it must be a text or a list")
        self.priced(_priced_apart(fields))
        self.named(fields)
        fields[_BOUND] = tokens = self.max_tokens(asked_bound(fields, (_BOUND,)))
        return Row(key, written_request(RESPONSES_MARK, fields), tokens)


class EmbeddingsLineRules(OpenAILineRules):
    """Rules of lines of embeddings. A reply has no text, so that it needs no bound."""

    form = '{"custom_id": "...", "method": "POST", "url": "/v1/embeddings", "body": {...}}'
    urls = EMBEDDINGS_URLS
    api = "embeddings"

    def request(self, key: str, params: dict[str, Any]) -> Row:
        """Return the row of a request. Raises `RowRefused`."""
        fields, given = dict(params), params.get("input")
        if not given or type(given) not in (str, list):
            raise RowRefused(f"input is {'missing' if given is None else shown(given)}: it must be a text or a list")
        if type(given) is list and type(given[0]) in (str, list) and len(given) > INPUTS_MAX:
            raise RowRefused(f"input has {len(given):,} texts: at most {INPUTS_MAX:,}")
        self.named(fields)
        return Row(key, written_request(EMBEDDINGS_MARK, fields), 1)


def _priced_apart(fields: dict[str, Any]) -> str:
    """Return the part of a request that is billed by another measure than its tokens at the usual price; empty if there
    is none (https://platform.openai.com/docs/pricing: priority processing, and tools that the provider runs)."""
    if fields.get("service_tier") not in TIERS:
        return f"service_tier is {shown(fields['service_tier'])}"
    for tool in fields.get("tools") or ():
        kind = tool.get("type") if type(tool) is dict else None
        if kind not in ("function", "custom"):
            return f"a tool is of type {shown(kind)}"
    return ""
