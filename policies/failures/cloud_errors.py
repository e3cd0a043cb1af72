"""What does an error mean by the name that a cloud has for it?

Amazon Bedrock, Google Vertex AI and Microsoft Foundry pass on the errors of the Messages API where a model made them;
those of their own have names of their own. Bedrock's are the exceptions of InvokeModel (its service model, as botocore
ships it; a test compares), with those that every AWS service shares; Vertex AI's are the codes of google.rpc
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
        # AWS: what any of its services says of who asks
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
"""By the name's letters alone, in lower case: the value of a ``FailureKind``. Of what is found fault with in a request
(rejected) the words may say more."""

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
"""The account or the model, said in words under a name that says less."""

TOO_LARGE_WORDS: Final = re.compile(r"input is too long for requested model", re.IGNORECASE)

QUOTES: Final = re.compile(r"^\s*malformed input request", re.IGNORECASE)
"""Finds fault with a field, and may quote what the user wrote there: its words prove nothing about the account."""


def meaning(name: str) -> str:
    """The value of a ``FailureKind`` for this name of a cloud's; empty where it says nothing, or too little."""
    return MEANINGS.get(_LETTERS.sub("", name[:100].lower()), "")
