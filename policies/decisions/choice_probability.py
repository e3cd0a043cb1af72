"""Probability of a choice: from the log probabilities of an answer's tokens to P(choice).

A model that answers with one of several listed choices writes it as tokens. For each token a server may report the log
probability of the token and of the most likely others at that place (``top_logprobs``). The choices that are still
possible before a token are *open*; a token *fits* those whose text goes on with it. At the place i, with the open
choices O, let m(F) be the probability of all listed tokens that fit the choices F and no others, F the set that the
sampled token fits, and c the answer:

    P_i(c) = ( m({c}) + [F != {c}] m(F) P_i+1(c | O = F) ) / ( sum of m over all non-empty sets + u )

- Tokens that fit no choice are left out, so that the listed choices have probability 1 together: the place where the
  choices first differ decides, and the chain rule goes on where tokens are shared by several.
- Tokens that fit the same choices as the sampled one (another white space, another split into tokens) are taken to go
  on as the sampled one does: several paths of tokens lead to one text.
- u is the most that the choices without a listed token can have: their number times the probability of the least
  likely token of the list, and at most what the list leaves of 1. Unsampled tokens that are shared by the answer and
  other choices, but not by all that the sampled one fits, count against the answer. P is thus a lower bound where the
  list is short, and never 1 only because the list ends.

Without lists, or without choices, P is the product of the probabilities of the sampled tokens.

Source: the chain rule over tokens, normalised over the allowed texts as in Hendrycks et al., Measuring Massive
Multitask Language Understanding, 2021 (arXiv 2009.03300), which compares the probabilities of the labels' tokens; the
paths of tokens that spell one text are those of Cao and Rimell, You should evaluate your language model on marginal
likelihood over tokenisations, 2021 (arXiv 2109.02550).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

_SPACE: Final = b" \t\r\n"
_GOES_ON: Final = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-._")
"""Bytes by which a JSON number or word may go on."""


class TokenChances(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Token of an answer and its log probabilities."""

    text: bytes
    logprob: float | None
    """Natural logarithm of its probability; None: not known."""
    others: tuple[tuple[bytes, float], ...] = ()
    """Most likely tokens of this place with their log probabilities; the sampled one may be among them."""


def choice_probability(
    tokens: Sequence[TokenChances], begin: int, end: int, choices: Sequence[bytes] = (), answer: int = 0
) -> float | None:
    """Return the probability of an answer, 0 to 1; None where the tokens do not tell it.

    ``begin``, ``end``: place of the answer in the joined text of the tokens, in bytes. ``choices``: the texts that were
    allowed there, as they would be written, each once; empty: not listed. ``answer``: which of them it is.
    """
    if len(choices) < 2:
        return _product(tokens, begin, end)
    text = b"".join([token.text for token in tokens])
    possible = frozenset(range(len(choices)))
    found, reached, at = 0.0, 1.0, 0
    for token in tokens:
        start, at = at, at + len(token.text)
        if at <= begin:
            continue
        if token.logprob is None:
            return None
        if not token.others:
            return _product(tokens, begin, end)
        place = _Place(text[start:begin], text[begin:start], choices, possible)
        share = place.share(token, answer)
        if share is None:
            return None
        sure, going_on, fitting = share
        found += reached * sure
        if fitting == {answer}:
            return min(found, 1.0)
        reached *= going_on
        possible = fitting
    return None  # the tokens end before the answer can be told from another choice


def choice_distribution(
    tokens: Sequence[TokenChances], begin: int, end: int, choices: Sequence[bytes], answer: int
) -> list[float] | None:
    """Return the probability of each choice where an answer was written, which are 1 together; None where the tokens do
    not tell them. Arguments as of ``choice_probability``.

    What the lists leave open is divided evenly: the probability of a token that several choices share, which was not
    sampled, and u, among those without a listed token. That of the answer is thus never below ``choice_probability``.
    """
    text = b"".join([token.text for token in tokens])
    possible = frozenset(range(len(choices)))
    found, reached, at = [0.0] * len(choices), 1.0, 0
    for token in tokens:
        start, at = at, at + len(token.text)
        if at <= begin:
            continue
        if token.logprob is None or len(choices) < 2:
            return None
        if not token.others:
            own = _product(tokens, begin, end)
            if own is None:
                return None
            rest = (1.0 - own) / (len(choices) - 1)
            return [own if each == answer else rest for each in range(len(choices))]
        place = _Place(text[start:begin], text[begin:start], choices, possible).masses(token)
        if answer not in place.own or place.whole <= 0.0:
            return None
        for fitting, mass in (*place.masses.items(), (place.missing, place.unseen)):
            if fitting == place.own and fitting != {answer}:
                continue  # the next token decides between these
            for each in fitting:
                found[each] += reached * mass / place.whole / len(fitting)
        if place.own == {answer}:
            return found
        reached *= place.masses[place.own] / place.whole
        possible = place.own
    return None


class _Masses(msgspec.Struct, frozen=True):
    """Probabilities at one place."""

    masses: dict[frozenset[int], float]
    """Of the listed tokens that fit these choices and no others, by the choices."""
    own: frozenset[int]
    """Choices that the sampled token fits."""
    missing: frozenset[int]
    """Open choices that no listed token fits."""
    unseen: float
    """The most that the missing ones can have."""
    whole: float


class _Place:
    """Place of one token: what is before the answer there, what of the answer is written, and the open choices."""

    def __init__(self, lead: bytes, written: bytes, choices: Sequence[bytes], possible: frozenset[int]) -> None:
        self._lead = bytes(byte for byte in lead if byte not in _SPACE)
        self._written = written
        self._choices = choices
        self._open = possible

    def share(self, token: TokenChances, answer: int) -> tuple[float, float, frozenset[int]] | None:
        """Return the share of the tokens that fit the answer alone, the share of those that fit the same choices as the
        sampled one, and these choices. None if the sampled token does not fit the answer, or nothing has a
        probability."""
        found = self.masses(token)
        if answer not in found.own or found.whole <= 0.0:
            return None
        masses, whole = found.masses, found.whole
        return masses.get(frozenset({answer}), 0.0) / whole, masses[found.own] / whole, found.own

    def masses(self, token: TokenChances) -> _Masses:
        """Return the probabilities of the open choices here."""
        listed = {text: _chance(logprob) for text, logprob in token.others}
        least = min(listed.values())
        listed.setdefault(token.text, _chance(token.logprob))
        masses: dict[frozenset[int], float] = {}
        for text, chance in listed.items():
            if fitting := self._fitting(text):
                masses[fitting] = masses.get(fitting, 0.0) + chance
        missing = self._open.difference(*masses)
        unseen = min(len(missing) * least, max(1.0 - sum(listed.values()), 0.0))
        return _Masses(masses, self._fitting(token.text), missing, unseen, sum(masses.values()) + unseen)

    def _fitting(self, token: bytes) -> frozenset[int]:
        rest = token if self._written else self._after_lead(token)
        if rest is None:
            return frozenset()
        text = self._written + rest
        return frozenset(each for each in self._open if _fits(text, self._choices[each]))

    def _after_lead(self, token: bytes) -> bytes | None:
        """Return what a token writes of the answer, behind what stands before it there, with any white space; None for
        a token that writes something else."""
        place = 0
        for at, byte in enumerate(token):
            if byte in _SPACE:
                continue
            if place == len(self._lead):
                return token[at:]
            if byte != self._lead[place]:
                return None
            place += 1
        return b""


def _fits(text: bytes, choice: bytes) -> bool:
    """Return whether a choice begins with the text, or the text with the whole choice."""
    if choice.startswith(text):
        return True
    rest = text[len(choice) :]
    return text.startswith(choice) and (choice.endswith(b'"') or rest[0] not in _GOES_ON)


def _product(tokens: Sequence[TokenChances], begin: int, end: int) -> float | None:
    """Return the product of the probabilities of the tokens that write the answer; None if one is not known."""
    total, at, some = 0.0, 0, False
    for token in tokens:
        start, at = at, at + len(token.text)
        if start < end and at > begin and token.text:
            if token.logprob is None:
                return None
            total, some = total + min(token.logprob, 0.0), True
    return math.exp(total) if some and at >= end else None


def _chance(logprob: float | None) -> float:
    return 0.0 if logprob is None else math.exp(min(logprob, 0.0))
