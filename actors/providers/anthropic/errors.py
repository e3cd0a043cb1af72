"""Errors of the Messages API: https://docs.claude.com/en/api/errors."""

from __future__ import annotations

import re
from typing import Final

from actors.providers.remedies import MODEL, SCHEMA
from policies.failures.error_vocabulary import ErrorVocabulary, WordRule
from policies.failures.failure import FailureKind

# `error.details.error_code`, the stable way to tell causes apart (listed in the official SDK's `types.shared`). All of
# these are about the account, whatever the status they come with.
_ACCOUNT_CODES: Final = re.compile(
    r"\b(?:enforced_spend_limit_reached|contract_spend_limit_reached|linked_organization_spend_limit_reached"
    r"|linked_organization_billing_unavailable|organization_on_hold|organization_type_not_supported"
    r"|cmek_key_disabled|cmek_key_network_blocked|claude_code_key_creator_not_member)\b"
)

# Wording is the only sign where no code is given: credit and spend limits come as a plain 400.
_ACCOUNT_WORDS: Final = re.compile(
    r"credit balance is too low"
    r"|insufficient credit"
    r"|reached your specified (?:\w+ )?API usage limits"  # a spend limit the user set; names the day it ends
    r"|spend(?:ing)? (?:limit|cap)"
    r"|organization has been disabled"
    # LiteLLM, status 400 or 429, over each of its APIs: of a key, a team or a user, "LiteLLM Virtual Key: …, exceeded
    # budget for model=…", and of a model (BerriAI/litellm#4208, #14144, #37000, #40002). At the beginning alone: a
    # request may have exceeded the budget of its thinking.
    r"|^budget has been exceeded\b|^ExceededBudget:|^LiteLLM .{1,400}, exceeded budget for model="
    r"|^No deployments available\b.{1,20}\bcrossed budget:",
    re.IGNORECASE,
)
_END_USER_WORDS: Final = re.compile(
    r"^ExceededBudget: End User=|^LiteLLM End User: .{1,400}, exceeded budget for model=", re.IGNORECASE
)
"""Words of LiteLLM for the budget of the end user whom a row names (`user`, `metadata.user_id`); other rows may name
others. Its name for it is `budget_exceeded`, as of a key, and its status 400, 401, 422 or 429
(https://docs.litellm.ai/docs/proxy/users; `_check_end_user_budget` in litellm/proxy/auth/auth_checks.py)."""
_TOO_LARGE_WORDS: Final = re.compile(
    r"prompt is too long"
    r"|exceeds? (?:the )?(?:model'?s? )?(?:available )?context (?:limit|window|size|length)"
    r"|maximum context length"
    r"|longer than the (?:maximum )?model length"  # vLLM
    r"|longer than the (?:model'?s? )?context length"  # SGLang, Together; Ollama: "… currently available"
    r"|context length (?:is|of) only"  # vLLM: "You passed 5001 input tokens …"; LM Studio: "loaded with … 4096 tokens"
    r"|required for long context requests",  # a 429: this account's window is the short one
    re.IGNORECASE,
)
_UNKNOWN_MODEL_WORDS: Final = re.compile(
    r"\bmodel:?(?: \S{1,200})? (?:was |could )?(?:not (?:be )?found|(?:does )?not exist)"
    r"|\b(?:unknown|invalid|no such|not a valid) model\b"
    # LM Studio, status 400 (continuedev/continue#10150)
    r"|^No models loaded\b|^Failed to load model\b",
    re.IGNORECASE,
)
_MODEL_NAME_ONLY: Final = re.compile(r"^\s*model:")  # at 404 the provider says just "model: claude-nine"

_VLLM_SCHEMA_WORDS: Final = re.compile(
    r"^(?:\w+: )?(?:grammar error:|the provided JSON schema contains\b"
    r"|failed to transform (?:json schema|regex|choices) into a grammar)",
    re.IGNORECASE,
)
"""Words of vLLM for a schema that it refuses, also with status 500 over the Messages API: they are those of
`validate_xgrammar_grammar` and `validate_guidance_grammar` in its `v1/structured_output`, which look at the request
alone (noonghunna/club-3090#45, z-lab/paroquant#31). No other words are read at 500, where gateways tell their own
faults, also of a response and its format."""

_SCHEMA_WORDS: Final = re.compile(
    r"^output_(?:config\.)?format\b"  # Anthropic
    r"|^invalid schema for response_format"  # OpenAI
    r"|\bnot supported by xgrammar"  # vLLM behind a gateway
    r"|\bfailed to (?:parse|initialize) grammar|^JSON schema conversion failed"  # llama.cpp
    r"|\bresponse[_ ]format\b.{0,60}\b(?:not supported|unsupported|unavailable)"  # OpenAI's older models, DeepSeek
    r"|\bnot support (?:the )?response[_ ]format\b",  # Groq
    re.IGNORECASE,
)
"""Words for a schema, or schemas altogether, that a server refuses as a fault of the request; they stand before what
they quote. llama.cpp's: ggml-org/llama.cpp#19051; OpenAI's:
https://platform.openai.com/docs/guides/structured-outputs."""

_STATUSES: Final = frozenset({400, 404, 429})

ERRORS: Final = ErrorVocabulary(
    statuses={
        "invalid_request_error": 400,
        "authentication_error": 401,
        "billing_error": 402,
        "permission_error": 403,
        "not_found_error": 404,
        "request_too_large": 413,
        "rate_limit_error": 429,
        "api_error": 500,
        "timeout_error": 504,
        "overloaded_error": 529,
    },
    # LiteLLM's proxy: with a master key and no database it says the first, with status 400, of every other key
    # (BerriAI/litellm#12273); names of its `ProxyErrorTypes` (litellm/proxy/_types.py).
    meanings={
        "nodbconnection": FailureKind.UNAUTHORISED,
        "expiredkey": FailureKind.UNAUTHORISED,
        "budgetexceeded": FailureKind.BLOCKED,
    },
    account_types=frozenset({"billing_error"}),
    account_codes=(_ACCOUNT_CODES,),
    overloaded_types=frozenset({"overloaded_error"}),
    words=(
        WordRule(
            kind=FailureKind.BLOCKED, pattern=_MODEL_NAME_ONLY, statuses=frozenset({404}), named=False, quotes=None,
            remedy=MODEL,
        ),
        WordRule(kind=FailureKind.REJECTED, pattern=_END_USER_WORDS, statuses=frozenset({400, 401, 422, 429})),
        WordRule(kind=FailureKind.BLOCKED, pattern=_ACCOUNT_WORDS, statuses=_STATUSES),
        WordRule(kind=FailureKind.BLOCKED, pattern=_UNKNOWN_MODEL_WORDS, statuses=_STATUSES, remedy=MODEL),
        WordRule(kind=FailureKind.TOO_LARGE, pattern=_TOO_LARGE_WORDS, statuses=_STATUSES),
        WordRule(
            kind=FailureKind.REJECTED, pattern=_SCHEMA_WORDS, statuses=frozenset({400, 422}), named=False,
            quotes=None, remedy=SCHEMA,
        ),
        WordRule(
            kind=FailureKind.REJECTED, pattern=_VLLM_SCHEMA_WORDS, statuses=frozenset({400, 422, 500}), named=False,
            quotes=None, remedy=SCHEMA,
        ),
    ),
)
"""Names and words of Anthropic's errors."""
