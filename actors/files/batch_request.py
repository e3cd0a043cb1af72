"""Check of one input line of a batch: a request to send, a request refused before sending, or no row at all.

The form is that of the Message Batches API: `{"custom_id": "...", "params": {...}}`, where `params` are those of a
Messages request. Only requests that are certain to fail are refused; the provider judges the rest.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection
from typing import Any, Final

import msgspec

from cortex.state.events import Row
from cortex.values.bounds.counts import COUNT_MAX
from cortex.values.bounds.json_depth import deep_words, too_deep
from cortex.values.template import as_written, holds_minus_zero, values_as_written

CUSTOM_ID_CHARACTERS_MAX: Final = 64
"""Characters of a `custom_id`: the limit of the Message Batches API."""

LINE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of a line. The Messages API accepts no request over 32 MB (https://platform.claude.com/docs/en/api/overview,
request size)."""

FORM: Final = '{"custom_id": "...", "params": {"model": "...", "max_tokens": 100, "messages": [...]}}'

PARAMS: Final[dict[str, tuple[type, ...]]] = {
    "cache_control": (dict,),
    "container": (str, dict),
    "diagnostics": (dict,),
    "inference_geo": (str,),
    "max_tokens": (int,),
    "messages": (list,),
    "metadata": (dict,),
    "model": (str,),
    "output_config": (dict,),
    "service_tier": (str,),
    "speed": (str,),
    "stop_sequences": (list,),
    "stream": (bool,),
    "system": (str, list),
    "thinking": (dict,),
    "tool_choice": (dict,),
    "tools": (list,),
    "user_profile_id": (str,),
}
"""Parameters that a request may hold, with their types: `MessageCreateParams` of the anthropic SDK 2.12, without those
in `HEADERS`. A test compares the names with the installed SDK."""

HEADERS: Final = frozenset({"workspace_id"})
"""Arguments of the SDK that are sent as headers: the provider rejects them in a request's body."""

ROLES: Final = ("user", "assistant", "system")
"""Roles of `MessageParam` of the anthropic SDK 2.12."""

_OWN_TOOLS: Final = ("bash_", "computer_", "memory_", "text_editor_")
"""Prefixes of the tools that the provider defines and the client runs. Tools that the provider runs itself (web search,
web fetch, code execution, tool search) are billed by use, or read more than was sent."""

_KINDS: Final[dict[type, str]] = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false", list: "a list",
    dict: "an object", type(None): "null", msgspec.Raw: "a number",
}  # fmt: skip

_encode: Final = msgspec.json.Encoder().encode


def _finite(text: str) -> msgspec.Raw:
    """Return a number as it is written. Raises ``ValueError`` for one beyond the floats, which cannot be sent."""
    if abs(float(text)) == float("inf"):
        raise ValueError(f"{text} is beyond the floats")
    return as_written(text)


_decode: Final = msgspec.json.Decoder(float_hook=_finite).decode


UNDECODABLE: Final = b"\xed\xb3\xbf"
"""Bytes that take the place of bytes that the encoding of a file does not have (``actors.files.dialects.streams``)."""


class InvalidRow(ValueError):
    """Line that is no row and can have no result line. The message says why and how to correct the line."""


class RowRefused(ValueError):
    """Row that is not sent. The message becomes the error of the row's result."""


class RowRules:
    """Rules that a row must meet, and the parameters set on each row.

    `model`, when given, replaces the rows' models. `output_tokens_max`, when given, bounds their `max_tokens` and is
    the default of rows without `max_tokens`. `also_known` are names of further parameters, for a provider that accepts
    more than the SDK. `capped`: requests that may be billed beyond the price of their tokens are refused.
    """

    custom_id_max: int | None = CUSTOM_ID_CHARACTERS_MAX
    """Characters of a `custom_id` at most; None: any number."""
    form: str = FORM
    """Form of a line, for errors."""

    def __init__(
        self, *, model: str | None = None, output_tokens_max: int | None = None, also_known: Collection[str] = (),
        capped: bool = False,
    ) -> None:  # fmt: skip
        self.model = model
        self.output_tokens_max = output_tokens_max
        self.capped = capped
        self._kinds: dict[str, tuple[type, ...]] = {**dict.fromkeys(also_known, ()), **PARAMS}

    def read(self, line: bytes) -> Row:
        """Return the row in this line: a request to send, or a row whose `refusal` says why it is not sent.

        Raises `InvalidRow`.
        """
        if len(line) > LINE_BYTES_MAX:
            raise InvalidRow(f"longer than {LINE_BYTES_MAX >> 20} MB, which no provider takes: split the request")
        if too_deep(line):
            raise InvalidRow(f"is {deep_words()}, which no request is")
        try:
            found = _decode(line)
            if holds_minus_zero(line):
                found = values_as_written(line)
        except (ValueError, RecursionError) as error:
            found, unsendable = _second_look(line, error)
        else:
            unsendable = ""
        if type(found) is not dict:
            raise InvalidRow(f"is {_KINDS[type(found)]}; a row is {self.form}")
        key = _key(found)
        try:
            if unsendable:
                raise RowRefused(unsendable)
            check_custom_id(found["custom_id"], self.custom_id_max)
            return self.request(key, self.params(found))
        except RowRefused as refused:
            return Row(key, refusal=str(refused))

    def params(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the request in a line. Raises ``RowRefused``."""
        params = found.get("params")
        if type(params) is dict:
            return params
        if "params" in found:
            raise RowRefused(f"params is {shown(params)}: it must be an object, the Messages request")
        if "body" in found:
            raise RowRefused(
                "has no params but a body, as in the OpenAI batch format: the lines before are Message Batches "
                f"requests, {FORM}; a file has one form"
            )
        raise RowRefused(f"has no params: a row is {FORM}")

    def request(self, key: str, params: dict[str, Any]) -> Row:
        """Return the row of a request. Raises ``RowRefused``."""
        for name, value in params.items():
            kinds = self._kinds.get(name)
            if kinds is None:
                raise RowRefused(self._unknown(name))
            if kinds and value is not None and type(value) not in kinds:
                wanted = " or ".join(_KINDS[kind] for kind in kinds)
                raise RowRefused(f"{name} is {shown(value)}: it must be {wanted}")
        if params.pop("stream", None):
            raise RowRefused("stream is true: a result line holds a whole message; leave stream out")
        _check_messages(params.get("messages"))
        if self.capped and (dearer := _priced_apart(params)):
            raise RowRefused(
                f"{dearer}: not billed by tokens alone, so --max-cost could be passed; drop it, or run such "
                "rows under another --job without --max-cost"
            )
        if self.model is not None:
            params["model"] = self.model
        elif not params.get("model"):
            raise RowRefused("model is missing: name one in params, or give --model for all rows")
        params["max_tokens"] = tokens = self.max_tokens(params.get("max_tokens"))
        # Sorted by name at the top level, so that equal requests have equal bytes. The order below is kept: in a schema
        # it has meaning.
        return Row(key, _encode({name: params[name] for name in sorted(params)}), tokens)

    def max_tokens(self, asked: int | None) -> int:
        """Return the bound of a reply, given the one that a request asks for. Raises ``RowRefused``."""
        bound = self.output_tokens_max
        if asked is None:
            if bound is None:
                raise RowRefused("max_tokens is missing: say how long a reply may be, or give --max-output-tokens")
            return bound
        if asked < 0:
            raise RowRefused(f"max_tokens is {asked}: it must not be negative")
        if asked > COUNT_MAX:
            raise RowRefused(f"max_tokens is {asked}: it must be at most {COUNT_MAX}")
        return asked if bound is None else min(asked, bound)

    def _unknown(self, name: str) -> str:
        if name in HEADERS:
            return f"{name} travels as a header, not in a request: leave it out"
        near = difflib.get_close_matches(name, self._kinds, n=1)
        meant = f"did you mean {near[0]}?" if near else "leave it out"
        return f"{shown(name)} is no parameter of a Messages request: {meant}"


def _priced_apart(params: dict[str, Any]) -> str:
    """Return the part of a request that is billed by another measure than its tokens; empty if there is none.

    Fast mode and a region multiply prices (https://platform.claude.com/docs/en/about-claude/pricing).
    """
    if params.get("speed") not in (None, "standard"):
        return f"speed is {shown(params['speed'])}"
    if params.get("inference_geo") not in (None, "global"):
        return f"inference_geo is {shown(params['inference_geo'])}"
    for tool in params.get("tools") or ():
        kind = tool.get("type") if type(tool) is dict else None
        if kind not in (None, "custom") and not str(kind).startswith(_OWN_TOOLS):
            return f"a tool is of type {shown(kind)}"
    return ""


def _key(found: dict[str, Any]) -> str:
    key = found.get("custom_id")
    if key is None:
        raise InvalidRow("has no custom_id: give each row one of its own, a string")
    if type(key) is str and key.isascii():
        return key
    try:
        return key if type(key) is str and key.encode() else _encode(key).decode()
    except UnicodeEncodeError:
        raise InvalidRow("custom_id holds half of a character, which cannot be written: give another") from None


def check_custom_id(key: Any, characters_max: int | None) -> None:
    """Raise ``RowRefused`` for a ``custom_id`` that is no text, is empty or is too long. None: any length."""
    if type(key) is not str:
        raise RowRefused(f"custom_id is {shown(key)}: it must be a string, so put it in quotes")
    if not key:
        raise RowRefused("custom_id is empty: give each row one of its own")
    if characters_max is not None and len(key) > characters_max:
        raise RowRefused(f"custom_id has {len(key)} characters: at most {characters_max}")


def _check_messages(messages: list[Any] | None) -> None:
    if not messages:
        raise RowRefused(f"messages is {'missing' if messages is None else 'empty'}: a request needs one at least")
    for place, message in enumerate(messages):
        if type(message) is not dict:
            raise RowRefused(f"messages[{place}] is {shown(message)}: it must be an object with role and content")
        if message.get("role") not in ROLES:
            role = shown(message["role"]) if "role" in message else "missing"
            raise RowRefused(f"messages[{place}].role is {role}: it must be {' or '.join(ROLES[:2])}")
        content = message.get("content")
        if type(content) is list:
            wrong = [block for block in content if type(block) is not dict]
            if wrong:
                raise RowRefused(f"messages[{place}].content holds {shown(wrong[0])}: its blocks must be objects")
            kinds = [kind for block in content if type(kind := block.get("type", "")) is not str]
            if kinds:
                raise RowRefused(f"messages[{place}].content holds a block of type {shown(kinds[0])}: it must be text")
        elif type(content) is not str:
            text = shown(content) if "content" in message else "missing"
            raise RowRefused(f"messages[{place}].content is {text}: it must be a string or a list of blocks")


def shown(value: Any) -> str:
    """Return a value for a message: short, and on one line."""
    if type(value) in (dict, list):
        return _KINDS[type(value)]
    text = bytes(value).decode() if type(value) is msgspec.Raw else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:36]}..."


# -- lines that are not JSON ------------------------------------------------------------------------------------------


def _second_look(line: bytes, error: Exception) -> tuple[Any, str]:
    """Return the value of a line that msgspec refused but that is JSON, and the reason why it cannot be sent.

    Valid JSON may hold half of a surrogate pair (text that was cut inside a character, then escaped) and numbers too
    large for any machine type. Neither can be sent, but such a row has a `custom_id`, so it gets a result line. Raises
    `InvalidRow` if the line is not JSON.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as wrong:
        raise InvalidRow(not_utf8(line, wrong.start)) from None
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidRow("is nested too deeply to be a request") from None
    except ValueError as wrong:
        raise InvalidRow(not_json(text, wrong)) from None
    if type(error) is RecursionError:
        raise InvalidRow("is nested too deeply to be a request")
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return found, "holds half of a character (a lone surrogate such as \\ud83d): text was cut inside one"
    return found, "holds a number that is too large to be sent"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def not_utf8(line: bytes, place: int) -> str:
    """Return the error text of a line whose byte at this index is not UTF-8."""
    if line.startswith(UNDECODABLE, place):
        return f"character {len(line[:place].decode()) + 1} is not valid in the encoding of the file"
    return (
        f"byte {place + 1} (0x{line[place]:02x}) is not UTF-8: correct the line, or give --encoding NAME if the file "
        "has another encoding"
    )


def not_json(text: str, wrong: ValueError) -> str:
    """Return the error text of a line that is no JSON."""
    if not isinstance(wrong, json.JSONDecodeError):
        return f"invalid JSON: {wrong}"
    message = (wrong.msg[0].lower() + wrong.msg[1:]).removesuffix(" at").removesuffix(" starting")  # a place follows
    if wrong.msg == "Extra data":
        return f"invalid JSON: more follows the first value at character {wrong.pos + 1}; write one object a line"
    if wrong.pos >= len(text.rstrip()) or wrong.msg.startswith("Unterminated string"):
        return f"invalid JSON: the line ends too early ({message}); write one whole object a line"
    return f"invalid JSON: {message} at character {wrong.pos + 1}"
