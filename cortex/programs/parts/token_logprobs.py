"""Probability of a value within a reply's text, from the log probabilities of its tokens
(``cortex.calls.reply_tokens``). The formula is ``policies.decisions.choice_probability``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from cortex.calls.reply_tokens import joined, tokens_of
from cortex.values.json_schema.checks import identity_of
from cortex.values.reply import Malformed
from cortex.values.schema import json_text
from policies.decisions.choice_probability import TokenChances, choice_distribution, choice_probability

_encode: Final = msgspec.json.Encoder().encode
_scan: Final = json.JSONDecoder().raw_decode
_SPACE: Final = " \t\r\n"


def text_probability(body: bytes, text: str) -> float | None:
    """Return the probability of a reply's text, without white space around it; None where it is not told."""
    tokens = tokens_of(body)
    answer = text.strip().encode("utf-8", "replace")
    begin = joined(tokens).rfind(answer) if answer else -1
    return None if begin < 0 else choice_probability(tokens, begin, begin + len(answer))


def field_probabilities(
    body: bytes, text: str, choices: Mapping[str, Sequence[Any]], *, in_words: bool = False
) -> dict[str, float | None]:
    """Return the probability of the value of each field of a reply's JSON object; None where it is not told.

    ``text``: the reply's text; ``choices``: the values that each field may have, as plain data; ``in_words``: as in
    ``cortex.values.schema.decoded``.
    """
    return {
        name: None if each is None else choice_probability(*each)
        for name, each in _written(body, text, choices, in_words).items()
    }  # fmt: skip


def field_distributions(
    body: bytes, text: str, choices: Mapping[str, Sequence[Any]], *, in_words: bool = False
) -> dict[str, list[float]]:
    """Return the probability of each value that a field may have, where the reply's value was written; empty where it
    is not told. Arguments as of ``field_probabilities``."""
    return {
        name: [] if each is None else choice_distribution(*each) or []
        for name, each in _written(body, text, choices, in_words).items()
    }  # fmt: skip


_Written = tuple[Sequence[TokenChances], int, int, Sequence[bytes], int]
"""Arguments of ``choice_probability``."""


def _written(
    body: bytes, text: str, choices: Mapping[str, Sequence[Any]], in_words: bool
) -> dict[str, _Written | None]:  # fmt: skip
    """Return where the value of each field stands in a reply's tokens; None where it is not found."""
    nothing: dict[str, _Written | None] = dict.fromkeys(choices)
    tokens = tokens_of(body)
    if not tokens:
        return nothing
    try:
        message = json_text(text, in_words=in_words)
        spans = _spans(message)
    except (Malformed, ValueError, RecursionError):
        return nothing
    start = joined(tokens).rfind(text.encode("utf-8", "replace"))
    if start < 0:  # the tokens are of another text
        return nothing
    start += len(text[: text.index(message)].encode("utf-8", "replace"))
    return {name: _of_value(tokens, message, start, spans.get(name), allowed) for name, allowed in choices.items()}


def _of_value(
    tokens: Sequence[TokenChances], message: str, start: int, span: tuple[int, int] | None, allowed: Sequence[Any]
) -> _Written | None:
    """Return the place of the value at a place of a JSON text, which begins at ``start`` of the tokens' text."""
    if span is None:
        return None
    written = message[span[0] : span[1]]
    value = identity_of(msgspec.json.decode(written))
    texts = {identity_of(each): _encode(each) for each in allowed}
    if value not in texts:
        return None
    texts[value] = written.encode()
    begin = start + len(message[: span[0]].encode())
    return tokens, begin, begin + len(texts[value]), [*texts.values()], [*texts].index(value)


def _spans(message: str) -> dict[str, tuple[int, int]]:
    """Return the places of the values of a JSON object by name, in characters. Raises ``ValueError``."""
    found: dict[str, tuple[int, int]] = {}
    at = _behind(message, _behind(message, 0), "{")
    while message[at] == '"':
        name, at = _scan(message, at)
        begin = _behind(message, _behind(message, at), ":")
        _, end = _scan(message, begin)
        found[name] = begin, end
        at = _behind(message, end)
        if message[at] == "}":
            break
        at = _behind(message, at, ",")
    return found


def _behind(message: str, at: int, sign: str = "") -> int:
    """Return the place behind a sign, and behind the white space there. Raises ``ValueError``."""
    if not message.startswith(sign, at):
        raise ValueError(f"expected {sign} at {at}")
    at += len(sign)
    while at < len(message) and message[at] in _SPACE:
        at += 1
    if at >= len(message):
        raise ValueError("the text is cut")
    return at
