"""Meaning of the error names of clouds that serve models.

Amazon Bedrock, Google Vertex AI and Microsoft Foundry pass on the errors of the Messages API if a model made them;
their own errors have other names. Bedrock's are the exceptions of InvokeModel (its service model, as botocore ships it;
a test compares), and those that all AWS services share; Vertex AI's are the codes of google.rpc
(https://cloud.google.com/apis/design/errors); Foundry's are the codes of Azure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_LETTERS: Final = re.compile(r"[^a-z]")

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Bedrock: InvokeModel
        "throttlingexception": "throttled",
        "servicequotaexceededexception": "blocked",
        "modelnotreadyexception": "overloaded",
        "serviceunavailableexception": "overloaded",
        "modelerrorexception": "transient",
        "modelstreamerrorexception": "transient",
        "modeltimeoutexception": "transient",
        "internalserverexception": "transient",
        "resourcenotfoundexception": "blocked",
        "accessdeniedexception": "unauthorised",
        "validationexception": "rejected",
        # AWS: errors of any service about the caller
        "unrecognizedclientexception": "unauthorised",
        "invalidclienttokenid": "unauthorised",
        "expiredtokenexception": "unauthorised",
        "expiredtoken": "unauthorised",
        "invalidsignatureexception": "unauthorised",
        "incompletesignature": "unauthorised",
        "incompletesignatureexception": "unauthorised",
        "missingauthenticationtoken": "unauthorised",
        "missingauthenticationtokenexception": "unauthorised",
        "requestexpired": "unauthorised",
        "optinrequired": "unauthorised",
        # Vertex AI: google.rpc.Code
        "resourceexhausted": "throttled",
        "unauthenticated": "unauthorised",
        "permissiondenied": "unauthorised",
        "notfound": "blocked",
        "failedprecondition": "blocked",
        "unavailable": "overloaded",
        "aborted": "transient",
        "cancelled": "transient",
        "dataloss": "transient",
        "deadlineexceeded": "transient",
        "invalidargument": "rejected",
        "internal": "transient",
        "unknown": "transient",
        # Foundry: Azure
        "ratelimitreached": "throttled",
        "ratelimitexceeded": "throttled",
        "toomanyrequests": "throttled",
        "deploymentnotfound": "blocked",
        "resourcenotfound": "blocked",
        "unknownmodel": "blocked",
        "insufficientquota": "blocked",
        "quotaexceeded": "blocked",
        "invalidsubscriptionkey": "unauthorised",
        "accessdenied": "unauthorised",
    }
)
"""Value of a ``FailureKind`` by error name, lower case, letters only. For a rejected request the message may say
more."""

ACCOUNT_WORDS: Final = re.compile(
    r"too many tokens per day"  # Bedrock's daily quota comes as a throttling
    r"|model identifier is invalid"
    r"|on-demand throughput isn.t supported"
    r"|reached the end of its life"
    r"|use case details have not been submitted"
    r"|access to the model\b"
    r"|^\s*operation not allowed"
    r"|publisher model\b.{0,300}?\bnot (?:found|allowed|servable)"
    r"|not allowed to use publisher model"
    r"|requires billing to be enabled"
    r"|deployment for this resource does not exist",
    re.IGNORECASE | re.DOTALL,
)
"""Wording that means account or model, under an error name that says less."""

TOO_LARGE_WORDS: Final = re.compile(r"input is too long for requested model", re.IGNORECASE)
"""Wording that means a prompt over the model's context window."""

QUOTES: Final = re.compile(r"^\s*malformed input request", re.IGNORECASE)
"""Start of a message about a field, which may quote the user's text: its words prove nothing about the account."""


def meaning(name: str) -> str:
    """Return the value of a ``FailureKind`` for a cloud's error name; empty if the name is unknown or too vague."""
    return MEANINGS.get(_LETTERS.sub("", name[:100].lower()), "")
