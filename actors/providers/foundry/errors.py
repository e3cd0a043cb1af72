"""Errors of Microsoft Foundry: the codes of Azure."""

from __future__ import annotations

import re
from typing import Final

from policies.failures.error_vocabulary import QUOTED, ErrorVocabulary, WordRule
from policies.failures.failure import FailureKind

_ACCOUNT_WORDS: Final = re.compile(r"deployment for this resource does not exist", re.IGNORECASE)

ERRORS: Final = ErrorVocabulary(
    meanings={
        "ratelimitreached": FailureKind.THROTTLED,
        "ratelimitexceeded": FailureKind.THROTTLED,
        "toomanyrequests": FailureKind.THROTTLED,
        "deploymentnotfound": FailureKind.BLOCKED,
        "resourcenotfound": FailureKind.BLOCKED,
        "unknownmodel": FailureKind.BLOCKED,
        "insufficientquota": FailureKind.BLOCKED,
        "quotaexceeded": FailureKind.BLOCKED,
        "invalidsubscriptionkey": FailureKind.UNAUTHORISED,
        "accessdenied": FailureKind.UNAUTHORISED,
    },
    words=(
        WordRule(
            kind=FailureKind.BLOCKED, pattern=_ACCOUNT_WORDS, statuses=frozenset({400, 403, 404, 429}), quotes=QUOTED
        ),
    ),
)
"""Names and words of Foundry's errors."""
