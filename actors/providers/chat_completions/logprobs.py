"""Log probabilities in completions, as the canonical reply holds them (``cortex.calls.reply_tokens``).

The form: ``ChoiceLogprobs`` of the package ``openai`` 3.57; for each token its text, its bytes, ``logprob`` and
``top_logprobs``. Differences between servers:

- vLLM writes -9999.0 for probabilities that are 0, and lists the sampled token among the others
  (``vllm/entrypoints/openai/chat_completion/serving.py``); llama.cpp writes the lowest float32
- vLLM and llama.cpp list the tokens of reasoning, and special ones at the end, beside those of the content
- Together and llama-cpp-python give the lists of OpenAI's older completions: ``tokens``, ``token_logprobs``,
  ``top_logprobs`` with an object for each token (abetlen/llama-cpp-python#1787)
- bytes are null, or missing, in some
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

LEAST: Final = -9999.0
"""Logarithm in place of minus infinity, which JSON cannot hold: that of OpenAI and vLLM."""
CUT_BELOW: Final = -14.0
"""Logarithm below which the list of a place ends, after one more token: 8e-7. Further ones would change no probability
that is shown, and make a reply many times as long."""
_DIGITS: Final = 6


def canonical_logprobs(given: Any, text: str) -> list[Any] | None:
    """Return the log probabilities of a choice, from the token on with which its text begins; None where it has none.

    ``given``: the field ``logprobs`` of the choice. ``text``: its content.
    """
    if not isinstance(given, Mapping):
        return None
    content = given.get("content")
    entries: list[Any] = content if isinstance(content, list) else _older(given)
    listed = [_entry(each) for each in entries if isinstance(each, Mapping)]
    return listed[_before(listed, text) :] or None


def _older(given: Mapping[str, Any]) -> list[Any]:
    """Return the lists of the older form as entries of the newer one."""
    tokens, chances, tops = (given.get(name) for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not isinstance(tokens, list) or not isinstance(chances, list) or len(tokens) != len(chances):
        return []
    if not isinstance(tops, list) or len(tops) != len(tokens):
        tops = [None] * len(tokens)
    return [
        {"token": token, "logprob": chance, "top_logprobs": [
            {"token": each, "logprob": its} for each, its in (top.items() if isinstance(top, Mapping) else ())
        ]}
        for token, chance, top in zip(tokens, chances, tops, strict=True)
    ]  # fmt: skip


def _entry(given: Mapping[str, Any]) -> list[Any]:
    listed = given.get("top_logprobs")
    tops = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, Sequence) else []
    others = [(_token(each), chance) for each in tops if (chance := _logprob(each.get("logprob"))) is not None]
    others.sort(key=lambda each: -each[1])
    long = next((at for at, (_, chance) in enumerate(others) if chance < CUT_BELOW), len(others))
    return [_token(given), _logprob(given.get("logprob")), others[: long + 1]]


def _token(given: Mapping[str, Any]) -> str | list[int]:
    """Return the text of a token, or its bytes where they are no text."""
    raw = given.get("bytes")
    if isinstance(raw, list) and raw:
        try:
            return bytes(raw).decode()
        except UnicodeDecodeError:
            return raw
        except (ValueError, TypeError):
            pass
    text = given.get("token")
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""


def _logprob(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # NaN
        return None
    return round(min(max(value, LEAST), 0.0), _DIGITS)


def _before(listed: list[list[Any]], text: str) -> int:
    """Return the number of tokens before the text: those of reasoning. 0 if the text is not found."""
    pieces = [bytes(token) if isinstance(token, list) else token.encode() for token, *_ in listed]
    begin = b"".join(pieces).rfind(text.encode("utf-8", "replace")) if text else 0
    at = 0
    for number, piece in enumerate(pieces):
        at += len(piece)
        if at > begin:
            return number
    return 0
