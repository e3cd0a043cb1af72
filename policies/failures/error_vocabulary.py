"""Which kind of failure is a provider's error response?

Each provider has names and words of its own for its errors. An `ErrorVocabulary` holds them as data, `classify` is the
one function that reads an error by it. The vocabularies themselves belong to the providers
(`actors.providers.*.errors`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from policies.failures.failure import FailureKind

FIELD_PATH: Final = re.compile(r"^\s*\w+(?:\.\w+|\[\d+\])+\s*:")
"""Message that finds fault with a field, as "messages.0.content: ...", and may quote what the user wrote there. Its
words prove nothing about account or model: one odd row must not pause a job."""

QUOTED: Final = re.compile(rf"{FIELD_PATH.pattern}|^\s*malformed input request", re.IGNORECASE)
"""The same for a cloud's own errors, which also begin with "Malformed input request: ..." (Amazon Bedrock)."""

_CHARS_READ: Final = 4_000  # a gateway's error page may be megabytes; what names the cause stands first
_LETTERS: Final = re.compile(r"[^a-z]")

BY_STATUS: Final[Mapping[int, FailureKind]] = MappingProxyType(
    {
        401: FailureKind.UNAUTHORISED,
        402: FailureKind.BLOCKED,
        403: FailureKind.UNAUTHORISED,
        408: FailureKind.TRANSIENT,
        409: FailureKind.TRANSIENT,
        413: FailureKind.TOO_LARGE,
        429: FailureKind.THROTTLED,
        503: FailureKind.OVERLOADED,
        529: FailureKind.OVERLOADED,
    }
)
"""Kind by HTTP status, where neither name nor words say more. Other statuses from 500 on are TRANSIENT, others below
REJECTED."""


class WordRule(msgspec.Struct, frozen=True, kw_only=True):
    """Kind of an error whose message matches a pattern."""

    kind: FailureKind
    pattern: re.Pattern[str]
    statuses: frozenset[int]
    """HTTP statuses at which the words count."""
    named: bool = True
    """True if the words also count at any status of an error whose name the vocabulary knows."""
    quotes: re.Pattern[str] | None = FIELD_PATH
    """Beginning of messages that quote the request, in which words prove nothing; None: words always count."""


class ErrorVocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """Names and words of a provider's errors. Every part may be empty."""

    statuses: Mapping[str, int] = {}
    """HTTP status of an error by its documented type. An error inside a stream follows status 200 and has its type
    alone."""
    meanings: Mapping[str, FailureKind] = {}
    """Kind by the error's name: its letters alone, in lower case."""
    account_types: frozenset[str] = frozenset()
    """Types that are about the account whatever status they come with: BLOCKED."""
    account_codes: tuple[re.Pattern[str], ...] = ()
    """Patterns of codes in the error's details that are about the account: BLOCKED."""
    overloaded_types: frozenset[str] = frozenset()
    """Types that mean OVERLOADED at any status from 500 on."""
    words: tuple[WordRule, ...] = ()
    """Rules in their order; the first that matches holds."""

    def status_of(self, error_type: str) -> int:
        """HTTP status with which the provider sends this type; 500 for one that it does not document."""
        return self.statuses.get(error_type, 500)

    def meaning(self, name: str) -> FailureKind | None:
        """Kind that this name has; None where the name says nothing, or too little."""
        return self.meanings.get(_LETTERS.sub("", name[:100].lower()))


def joined(*each: ErrorVocabulary) -> ErrorVocabulary:
    """Union of vocabularies, for a client that meets the errors of several providers. The first one's entries win."""
    backwards = tuple(reversed(each))
    return ErrorVocabulary(
        statuses={name: status for one in backwards for name, status in one.statuses.items()},
        meanings={name: kind for one in backwards for name, kind in one.meanings.items()},
        account_types=frozenset().union(*(one.account_types for one in each)),
        account_codes=tuple(code for one in each for code in one.account_codes),
        overloaded_types=frozenset().union(*(one.overloaded_types for one in each)),
        words=tuple(rule for one in each for rule in one.words),
    )


def classify(
    vocabulary: ErrorVocabulary, status: int, error_type: str, message: str, details: str = ""
) -> FailureKind:
    """Return the kind of a provider's error response.

    `status` is the HTTP status, 0 where no response came; `error_type` and `message` the provider's name for the error
    and its text; `details` its code, or the whole of its details as JSON text. An error inside a stream has status 200
    and is read by its type. What is no error by status or type is TRANSIENT: the response could not be read.
    """
    message, details = message[:_CHARS_READ], details[:_CHARS_READ]
    named = vocabulary.meaning(error_type)
    if status < 400:
        status = vocabulary.status_of(error_type)
    if error_type in vocabulary.account_types or any(code.search(details) for code in vocabulary.account_codes):
        return FailureKind.BLOCKED
    for rule in vocabulary.words:
        counts = status in rule.statuses or (rule.named and named is not None)
        quoted = rule.quotes is not None and rule.quotes.match(message)
        if counts and not quoted and rule.pattern.search(message):
            return rule.kind
    if named is not None:
        return named
    if status >= 500 and error_type in vocabulary.overloaded_types:
        return FailureKind.OVERLOADED
    return BY_STATUS.get(status, FailureKind.TRANSIENT if status >= 500 else FailureKind.REJECTED)
