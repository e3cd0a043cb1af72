"""JSON in bodies that servers and gateways have spoiled: in another encoding, packed, with something around it."""

from __future__ import annotations

import json
from typing import Any, Final

from actors.providers.transport.body import UnreadableAnswer, UnreadableResponse, json_bytes, unread

_ASCII: Final = b'{"a":"-"}'
_GZIP: Final = b"\x1f\x8b"
_DIGITS_MAX: Final = 4_000
"""Digits of an integer above which Python refuses to read it (``sys.set_int_max_str_digits``)."""


def charset_in(parameters: str) -> str:
    """Return the charset among the parameters of a content type; empty without one."""
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"')
    return ""


def plain_json(body: bytes) -> bytes:
    """Return a body as UTF-8 without a byte order mark, for readers of errors."""
    return text_of(body).encode("utf-8", "replace")


def plain_value(body: bytes, charset: str = "", answer: str = "") -> bytes:
    """Return the first JSON value of a body as correct JSON; of an object that was cut behind the field ``answer``, the
    whole fields (``before_cut``). Raises UnreadableResponse where there is none, and UnreadableAnswer for one that is
    nested too deeply: no page of a proxy is."""
    text = text_of(body, charset)
    try:
        return json_bytes(first_value(text))
    except RecursionError as error:
        raise unread(error) from None
    except ValueError as error:
        return json_bytes(before_cut(text, answer, f"it is no JSON: {error}"))


def before_cut(text: str, answer: str, why: str) -> dict[str, Any]:
    """Return the whole fields of an object that was cut behind the field ``answer``. Raises UnreadableAnswer for one
    that was cut before, or names that field and is no JSON, and UnreadableResponse with ``why`` for other text.

    A field behind the answer proves that the answer is whole. The last field may be cut, and is left out.
    """
    import jiter  # a dependency of the SDK's

    try:
        found = jiter.from_json(text.encode("utf-8", "replace"), partial_mode=True) if text.startswith("{") else None
    except ValueError:
        found = None
    if not answer or not isinstance(found, dict) or not found:
        came = answer and text.startswith("{") and f'"{answer}"' in text
        raise UnreadableAnswer(why) if came else UnreadableResponse(why)
    last = next(reversed(found))
    if answer not in found or last == answer:
        raise UnreadableAnswer("the answer was cut before its content was whole")
    del found[last]
    return found


def text_of(body: bytes, charset: str = "") -> str:
    """Return the text of a body, without a byte order mark and blanks at its beginning. ``charset``: the one that its
    content type names. Raises UnreadableResponse for a cut gzip."""
    if body.startswith(_GZIP):
        body = _unpacked(body)
    encoding = json.detect_encoding(body)
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError:
        text = _decoded(body, charset)
    return text.lstrip("\ufeff \t\r\n")


def _decoded(body: bytes, charset: str) -> str:
    """Return a body that is no UTF-8 as text, in its charset if that is known and writes ASCII as it is."""
    try:
        if charset and _ASCII.decode(charset).encode() == _ASCII:
            return body.decode(charset, "replace")
    except (LookupError, ValueError):  # no codec of texts, or one that cannot replace
        pass
    return body.decode("utf-8", "replace")


def first_value(text: str) -> Any:
    """Return the first JSON value of a text; further ones, and anything else behind it, are left out. Raises
    ValueError where there is none, RecursionError for one that is nested too deeply."""
    value, _ = _DECODER.raw_decode(text)
    return value


def _unpacked(body: bytes) -> bytes:
    import aiohttp  # whose error it is; a simulated provider does without

    from actors.providers.transport.content_encoding import decoded

    try:
        return decoded(body, "gzip")
    except aiohttp.ClientPayloadError:
        raise UnreadableResponse("the answer is a cut gzip") from None


def _whole_number(digits: str) -> int | None:
    return int(digits) if len(digits) <= _DIGITS_MAX else None


_DECODER: Final = json.JSONDecoder(parse_int=_whole_number, parse_constant=lambda _: None, strict=False)
