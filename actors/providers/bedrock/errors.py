"""Errors of Amazon Bedrock: the exceptions of InvokeModel (its service model, as botocore ships it; a test compares),
and those that every AWS service shares."""

from __future__ import annotations

import re
from typing import Final

from policies.failures.error_vocabulary import QUOTED, ErrorVocabulary, WordRule
from policies.failures.failure import FailureKind

_STATUSES: Final = frozenset({400, 403, 404, 429})

_ACCOUNT_WORDS: Final = re.compile(
    r"too many tokens per day"  # the daily quota comes as a throttling
    r"|model identifier is invalid"
    r"|on-demand throughput isn.t supported"
    r"|reached the end of its life"
    r"|use case details have not been submitted"
    r"|access to the model\b"
    r"|^\s*operation not allowed",
    re.IGNORECASE,
)
_TOO_LARGE_WORDS: Final = re.compile(r"input is too long for requested model", re.IGNORECASE)

ERRORS: Final = ErrorVocabulary(
    meanings={
        # InvokeModel
        "throttlingexception": FailureKind.THROTTLED,
        "servicequotaexceededexception": FailureKind.BLOCKED,
        "modelnotreadyexception": FailureKind.OVERLOADED,
        "serviceunavailableexception": FailureKind.OVERLOADED,
        "modelerrorexception": FailureKind.TRANSIENT,
        "modelstreamerrorexception": FailureKind.TRANSIENT,
        "modeltimeoutexception": FailureKind.TRANSIENT,
        "internalserverexception": FailureKind.TRANSIENT,
        "resourcenotfoundexception": FailureKind.BLOCKED,
        "accessdeniedexception": FailureKind.UNAUTHORISED,
        "validationexception": FailureKind.REJECTED,
        # any AWS service, of the caller
        "unrecognizedclientexception": FailureKind.UNAUTHORISED,
        "invalidclienttokenid": FailureKind.UNAUTHORISED,
        "expiredtokenexception": FailureKind.UNAUTHORISED,
        "expiredtoken": FailureKind.UNAUTHORISED,
        "invalidsignatureexception": FailureKind.UNAUTHORISED,
        "incompletesignature": FailureKind.UNAUTHORISED,
        "incompletesignatureexception": FailureKind.UNAUTHORISED,
        "missingauthenticationtoken": FailureKind.UNAUTHORISED,
        "missingauthenticationtokenexception": FailureKind.UNAUTHORISED,
        "requestexpired": FailureKind.UNAUTHORISED,
        "optinrequired": FailureKind.UNAUTHORISED,
    },
    words=(
        WordRule(kind=FailureKind.BLOCKED, pattern=_ACCOUNT_WORDS, statuses=_STATUSES, quotes=QUOTED),
        WordRule(kind=FailureKind.TOO_LARGE, pattern=_TOO_LARGE_WORDS, statuses=_STATUSES, quotes=QUOTED),
    ),
)
"""Names and words of Bedrock's errors. An error that finds fault with a request (REJECTED) may say more in words."""
