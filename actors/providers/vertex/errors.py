"""Errors of Google Vertex AI: the codes of google.rpc (https://cloud.google.com/apis/design/errors)."""

from __future__ import annotations

import re
from typing import Final

from policies.failures.error_vocabulary import QUOTED, ErrorVocabulary, WordRule
from policies.failures.failure import FailureKind

_ACCOUNT_WORDS: Final = re.compile(
    r"publisher model\b.{0,300}?\bnot (?:found|allowed|servable)"
    r"|not allowed to use publisher model"
    r"|requires billing to be enabled",
    re.IGNORECASE | re.DOTALL,
)

ERRORS: Final = ErrorVocabulary(
    meanings={
        "resourceexhausted": FailureKind.THROTTLED,
        "unauthenticated": FailureKind.UNAUTHORISED,
        "permissiondenied": FailureKind.UNAUTHORISED,
        "notfound": FailureKind.BLOCKED,
        "failedprecondition": FailureKind.BLOCKED,
        "unavailable": FailureKind.OVERLOADED,
        "aborted": FailureKind.TRANSIENT,
        "cancelled": FailureKind.TRANSIENT,
        "dataloss": FailureKind.TRANSIENT,
        "deadlineexceeded": FailureKind.TRANSIENT,
        "invalidargument": FailureKind.REJECTED,
        "internal": FailureKind.TRANSIENT,
        "unknown": FailureKind.TRANSIENT,
    },
    words=(
        WordRule(
            kind=FailureKind.BLOCKED, pattern=_ACCOUNT_WORDS, statuses=frozenset({400, 403, 404, 429}), quotes=QUOTED
        ),
    ),
)
"""Names and words of Vertex AI's errors."""
