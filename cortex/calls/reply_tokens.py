"""Log probabilities of a reply's tokens.

A canonical reply (``cortex.values.canonical``) whose provider was asked for them has a field ``logprobs``: a list of
``[token, logprob, [[token, logprob], …]]``, the last one the most likely tokens of that place. A token is its text, or
a list of its bytes where these are no whole UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from policies.decisions.choice_probability import TokenChances, choice_distribution

_Token = str | list[int]


class _Listed(msgspec.Struct, gc=False):
    logprobs: list[tuple[_Token, float | None, list[tuple[_Token, float]]]] | None = None


_DECODER: Final = msgspec.json.Decoder(_Listed)


def tokens_of(body: bytes) -> list[TokenChances]:
    """Return the tokens of a canonical reply with their log probabilities; empty where it has none, or none that can
    be read."""
    try:
        listed = _DECODER.decode(body).logprobs or ()
        return [
            TokenChances(_bytes(token), logprob, tuple((_bytes(each), chance) for each, chance in others))
            for token, logprob, others in listed
        ]
    except (msgspec.DecodeError, ValueError):
        return []


def joined(tokens: Sequence[TokenChances]) -> bytes:
    """Return the text of tokens."""
    return b"".join([token.text for token in tokens])


def named_chances(body: bytes, text: str, choices: Sequence[str], answer: int) -> list[float]:
    """Return the probability of each choice where a reply names one of them; empty where its tokens do not tell it.

    ``text``: the reply's text; ``answer``: number of the choice that it names, in any case. The others are looked for
    in the case of that name.
    """
    tokens, choice = tokens_of(body), choices[answer]
    at = text.casefold().find(choice.casefold())
    start = joined(tokens).rfind(text.encode("utf-8", "replace")) if tokens and at >= 0 else -1
    if start < 0 or len(choices) < 2:
        return []
    written = text[at : at + len(choice)]
    case = next((each for each in (str, str.capitalize, str.upper, str.lower) if each(choice) == written), str)
    texts = [case(each).encode("utf-8", "replace") for each in choices]
    texts[answer] = written.encode("utf-8", "replace")
    begin = start + len(text[:at].encode("utf-8", "replace"))
    return choice_distribution(tokens, begin, begin + len(texts[answer]), texts, answer) or []


def _bytes(token: _Token) -> bytes:
    return token.encode("utf-8", "replace") if isinstance(token, str) else bytes(token)
