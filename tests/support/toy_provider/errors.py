"""Errors of the made-up provider."""

from __future__ import annotations

import re
from typing import Final

from policies.failures.error_vocabulary import ErrorVocabulary, WordRule
from policies.failures.failure import FailureKind

ERRORS: Final = ErrorVocabulary(
    meanings={
        "slowdown": FailureKind.THROTTLED,
        "badkey": FailureKind.UNAUTHORISED,
        "nosuchengine": FailureKind.BLOCKED,
        "tired": FailureKind.OVERLOADED,
    },
    words=(
        WordRule(
            kind=FailureKind.TOO_LARGE, pattern=re.compile(r"turns are too many"), statuses=frozenset({400})
        ),
    ),
)
