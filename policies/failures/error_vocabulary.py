"""Classification of a provider's error responses into failure kinds.

Each provider has its own names and words for its errors. An `ErrorVocabulary` holds them as data; `classify` reads an
error by it. The vocabularies themselves belong to the providers (`actors.providers.*.errors`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from policies.failures.failure import FailureKind

FIELD_PATH: Final = re.compile(r"^\s*\w+(?:\.\w+|\[\d+\])+\s*:")
"""Start of a message about a field, such as "messages.0.content: ...", which may quote the user's text. Its words prove
nothing about account or model: one odd row must not pause a job."""

QUOTED: Final = re.compile(rf"{FIELD_PATH.pattern}|^\s*malformed input request", re.IGNORECASE)
"""Start of a cloud's message that may quote the request: `FIELD_PATH`, or "Malformed input request: ..." (Amazon
Bedrock)."""

_CHARS_READ: Final = 4_000  # a gateway's error page may be megabytes; the words that name the cause come first
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
"""Kind by HTTP status, if neither name nor words say more. Other statuses from 500 on are TRANSIENT, those below are
REJECTED."""


NO_SUCH_PATH: Final = frozenset({404, 405, 501})
"""HTTP statuses of a path or a method that a server does not have (RFC 9110, 15.5.5, 15.5.6, 15.6.2)."""

_NO_PATH: Final = re.compile(
    r"^\s*(?:(?:file|page|resource|path|route|endpoint) )?not found\W*$"  # llama.cpp: "File Not Found"
    r"|^\s*(?:method not allowed|not implemented)\W*$"
    r"|^\s*invalid URL \("  # OpenAI: "Invalid URL (POST /v1/v1/messages)"
    r"|^\s*unexpected endpoint or method\b",  # LM Studio
    re.IGNORECASE,
)
"""Words for a path that a server does not have, in the form of an error of the API."""

_NO_TLS: Final = re.compile(
    r"plain HTTP request was sent to HTTPS port"  # nginx
    r"|sent an HTTP request to an HTTPS server"  # Go's net/http
    r"|speaking plain HTTP to an SSL-enabled server port"  # Apache
    r"|combination of host and port requires TLS",  # Tomcat
    re.IGNORECASE,
)
"""Words for a call by http where the server wants https; their status is 400."""


class WordRule(msgspec.Struct, frozen=True, kw_only=True):
    """Kind of an error whose message matches a pattern."""

    kind: FailureKind
    pattern: re.Pattern[str]
    statuses: frozenset[int]
    """HTTP statuses at which the words count."""
    named: bool = True
    """True if the words also count at any status of an error whose name is in the vocabulary."""
    quotes: re.Pattern[str] | None = FIELD_PATH
    """Start of messages that quote the request, whose words prove nothing; None: words always count."""
    remedy: str = ""
    """Advice to the user about such an error, as a clause; empty: the advice for its kind."""


class ErrorVocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """Names and words of a provider's errors. Every part may be empty."""

    statuses: Mapping[str, int] = {}
    """HTTP status of an error by its documented type. An error inside a stream follows status 200 and has only its
    type."""
    meanings: Mapping[str, FailureKind] = {}
    """Kind by the error's name: lower case, letters only."""
    account_types: frozenset[str] = frozenset()
    """Types that concern the account, whatever their status: BLOCKED."""
    account_codes: tuple[re.Pattern[str], ...] = ()
    """Patterns of codes in the error's details that concern the account: BLOCKED."""
    overloaded_types: frozenset[str] = frozenset()
    """Types that mean OVERLOADED at any status from 500 on."""
    words: tuple[WordRule, ...] = ()
    """Rules in order; the first that matches applies."""

    def status_of(self, error_type: str) -> int:
        """Return the HTTP status of this error type; 500 for an undocumented type."""
        return self.statuses.get(error_type, 500)

    def meaning(self, name: str) -> FailureKind | None:
        """Return the kind of an error of this name; None if the name is unknown or too vague."""
        return self.meanings.get(_LETTERS.sub("", name[:100].lower()))


def joined(*each: ErrorVocabulary) -> ErrorVocabulary:
    """Return the union of vocabularies, for a client of several providers. Entries of earlier vocabularies win."""
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
    """Return the kind of a provider's error response, as `classified` does."""
    return classified(vocabulary, status, error_type, message, details)[0]


def is_misdirected(kind: FailureKind, status: int, message: str, has_form: bool) -> bool:
    """Return whether an error response to a call shows that its address does not serve the API.

    Its status says that there is no such path or method, and its body is no error of the API's (`has_form`: it has the
    form of one), but a page or the text of another server; or its words say so. `kind` is the kind by its name and
    words, `message` its text, a page's without markup.
    """
    if kind not in (FailureKind.REJECTED, FailureKind.TRANSIENT):
        return False
    if status == 400:
        return wants_tls(status, message, has_form)
    if 200 <= status < 300:
        return says_no_path(message)
    return status in NO_SUCH_PATH and (not has_form or says_no_path(message))


def wants_tls(status: int, message: str, has_form: bool) -> bool:
    """Return whether an error response says that its port is one of HTTPS, and was called by http. Arguments as in
    `is_misdirected`."""
    return status == 400 and not has_form and _NO_TLS.search(message[:_CHARS_READ]) is not None


def says_no_path(message: str) -> bool:
    """Return whether the text of an error says that its server has no such path or method. LM Studio says so with
    status 200 (https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/618)."""
    return _NO_PATH.search(message[:_CHARS_READ]) is not None


def classified(
    vocabulary: ErrorVocabulary, status: int, error_type: str, message: str, details: str = ""
) -> tuple[FailureKind, str]:
    """Return the kind of a provider's error response, and the remedy that its words call for; empty: none.

    `status` is the HTTP status, 0 without a response; `error_type` and `message` are the provider's name and text of
    the error; `details` is its code, or the whole of its details as JSON text. An error inside a stream has status 200
    and is classified by its type. A response that is no error by status or type is TRANSIENT: it could not be read.
    """
    message, details = message[:_CHARS_READ], details[:_CHARS_READ]
    named = vocabulary.meaning(error_type)
    if status < 400:
        status = vocabulary.status_of(error_type)
    if error_type in vocabulary.account_types or any(code.search(details) for code in vocabulary.account_codes):
        return FailureKind.BLOCKED, ""
    for rule in vocabulary.words:
        counts = status in rule.statuses or (rule.named and named is not None)
        quoted = rule.quotes is not None and rule.quotes.match(message)
        if counts and not quoted and rule.pattern.search(message):
            return rule.kind, rule.remedy
    if named is not None:
        return named, ""
    if status >= 500 and error_type in vocabulary.overloaded_types:
        return FailureKind.OVERLOADED, ""
    return BY_STATUS.get(status, FailureKind.TRANSIENT if status >= 500 else FailureKind.REJECTED), ""
