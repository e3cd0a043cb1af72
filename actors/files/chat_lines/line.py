"""Check of one input line in the form of OpenAI's batch files: a request of chat completions, or a refusal. Lines of
other APIs: ``other_lines``.

The form: `{"custom_id": "...", "method": "POST", "url": "/v1/chat/completions", "body": {...}}`
(https://platform.openai.com/docs/guides/batch; `BatchRequestInput` of `vllm/entrypoints/openai/run_batch.py`). Every
field of the body is passed on (`cortex.values.chat_form.request`), or the line is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, Final

import msgspec

from actors.files.batch_request import RowRefused, RowRules, shown
from cortex.state.events import Row
from cortex.values.chat_form.messages import NoCounterpart, canonical_fields
from cortex.values.chat_form.request import chat_request

CHAT_FORM: Final = '{"custom_id": "...", "method": "POST", "url": "/v1/chat/completions", "body": {...}}'
CHAT_URLS: Final = frozenset({"/v1/chat/completions", "/chat/completions"})
"""Addresses of chat completions in lines; Azure's files have the shorter one
(https://learn.microsoft.com/azure/ai-foundry/openai/how-to/batch)."""
LOOKED_AT: Final = 1_000
"""First lines in which the form of a file is looked for."""

_BOUNDS: Final = ("max_completion_tokens", "max_tokens")
TIERS: Final = (None, "auto", "default", "flex")
"""Service tiers that are not dearer than the price that is known."""

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_chat_line(line: bytes) -> bool | None:
    """Return whether a line is one of OpenAI's batch files, and not of the Message Batches API; None: of none."""
    try:
        names = _object.decode(line).keys()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if "params" in names:
        return False
    return True if "body" in names and names & {"custom_id", "method", "url"} else None


def url_of(line: bytes) -> str:
    """Return the url of a line; empty: it has none."""
    try:
        return msgspec.json.decode(line, type=_Addressed).url
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


class _Addressed(msgspec.Struct):
    url: str = ""


class OpenAILineRules(RowRules):
    """Rules of lines of OpenAI's batch files whose url is one of ``urls``. All others of the file are refused, since a
    file is asked over one API."""

    custom_id_max = None  # the id stays here: batches at a provider have ids of their own
    urls: ClassVar[frozenset[str]]
    api: ClassVar[str]
    """Name of the API, for people."""

    def params(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a line. Raises `RowRefused`."""
        if "body" not in found:
            other = "params, as in the Message Batches format" if "params" in found else "no body"
            raise RowRefused(f"has {other}: this file is in the OpenAI batch format, {self.form}; a file has one form")
        if (method := found.get("method", "POST")) != "POST":
            raise RowRefused(f"method is {shown(method)}: it must be POST")
        url, body = found.get("url"), found["body"]
        if url not in self.urls:
            what = "is missing" if url is None else f"is {shown(url)}"
            raise RowRefused(f"url {what}: {self.others_refused()}")
        if type(body) is not dict:
            raise RowRefused(f"body is {shown(body)}: it must be an object, the request of {self.api}")
        if "api" in body:
            raise RowRefused(f"api is no field of {self.api}: leave it out")
        return body

    def others_refused(self) -> str:
        """Return why lines of other urls are refused."""
        here = max(self.urls, key=len)
        return f"lines of {here} are asked here: put others into a file of their own, for a model that has their API"

    def unusable(self, line: bytes) -> str:
        """Return a description of a file with this line, if lines of its url are not asked; otherwise empty."""
        url = url_of(line)
        if not url or url in self.urls:
            return ""
        return f"is in the OpenAI batch format, of {shown(url)}: {self.others_refused()}"

    def named(self, fields: dict[str, Any]) -> None:
        """Set the model of a request. Raises `RowRefused`."""
        if self.model is not None:
            fields["model"] = self.model
        elif not (model := fields.get("model")):
            raise RowRefused("model is missing: name one in body, or give --model for all rows")
        elif type(model) is not str:
            raise RowRefused(f"model is {shown(model)}: it must be a string")

    def priced(self, dearer: str) -> None:
        """Refuse a part of a request that is billed apart, where costs are capped. Raises `RowRefused`."""
        if self.capped and dearer:
            raise RowRefused(
                f"{dearer}: not billed by tokens alone, so --max-cost could be passed; drop it, or run such "
                "rows under another --job without --max-cost"
            )


class ChatLineRules(OpenAILineRules):
    """Rules of lines of chat completions. `translated`: requests become canonical ones, for models that are not asked
    over chat completions; what cannot be translated is refused, by `also_known` and `capped` too.
    """

    form = CHAT_FORM
    urls = CHAT_URLS
    api = "chat completions"

    def __init__(
        self, *, model: str | None = None, output_tokens_max: int | None = None, also_known: Collection[str] = (),
        capped: bool = False, translated: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(model=model, output_tokens_max=output_tokens_max, also_known=also_known, capped=capped)
        self._translated = translated

    def request(self, key: str, params: dict[str, Any]) -> Row:
        """Return the row of a request. Raises `RowRefused`."""
        fields = {name: value for name, value in params.items() if name != "stream"}
        if params.get("stream"):
            raise RowRefused("stream is true: a result line holds a whole completion; leave stream out")
        if fields.get("n") not in (None, 1):
            raise RowRefused(f"n is {shown(fields['n'])}: a line has one answer; write a line for each")
        _check_messages(fields.get("messages"))
        self.priced(_priced_apart(fields))
        self.named(fields)
        fields["max_tokens"] = tokens = self.max_tokens(asked_bound(fields, _BOUNDS))
        if not self._translated:
            return Row(key, chat_request(fields), tokens)
        try:
            return super().request(key, canonical_fields(fields))
        except NoCounterpart as none:
            raise RowRefused(str(none)) from None


def asked_bound(fields: dict[str, Any], names: Collection[str]) -> int | None:
    """Take the names of the bound out of the fields, and return the bound; None where there is none."""
    given = {name: value for name in names if (value := fields.pop(name, None)) is not None}
    for name, value in given.items():
        if type(value) is not int:
            raise RowRefused(f"{name} is {shown(value)}: it must be a whole number")
    if len(set(given.values())) > 1:
        raise RowRefused(f"{' and '.join(given)} are {' and '.join(map(str, given.values()))}: give one of them")
    return next(iter(given.values()), None)


def _check_messages(messages: Any) -> None:
    if not messages:
        raise RowRefused(f"messages is {'missing' if messages is None else 'empty'}: a request needs one at least")
    if type(messages) is not list:
        raise RowRefused(f"messages is {shown(messages)}: it must be a list")
    for place, message in enumerate(messages):
        if type(message) is not dict:
            raise RowRefused(f"messages[{place}] is {shown(message)}: it must be an object with role and content")
        if type(role := message.get("role")) is not str:
            raise RowRefused(f"messages[{place}].role is {'missing' if role is None else shown(role)}")
        content = message.get("content")
        if content is not None and type(content) not in (str, list):
            raise RowRefused(f"messages[{place}].content is {shown(content)}: it must be a string or a list of parts")
        for part in content if type(content) is list else ():
            if type(part) is not dict:
                raise RowRefused(f"messages[{place}].content holds {shown(part)}: its parts must be objects")
            if type(kind := part.get("type", "")) is not str:
                raise RowRefused(f"messages[{place}].content holds a part of type {shown(kind)}: it must be text")


def _priced_apart(fields: dict[str, Any]) -> str:
    """Return the part of a request that is billed by another measure than its tokens at the usual price; empty if there
    is none (https://platform.openai.com/docs/pricing: priority processing, audio tokens, web search calls; predicted
    outputs: tokens of a rejected prediction are billed as output)."""
    if fields.get("service_tier") not in TIERS:
        return f"service_tier is {shown(fields['service_tier'])}"
    for name in ("web_search_options", "prediction", "audio"):
        if fields.get(name) is not None:
            return f"{name} is given"
    modalities = fields.get("modalities")
    return f"modalities is {shown(modalities)}" if modalities not in (None, ["text"]) else ""
