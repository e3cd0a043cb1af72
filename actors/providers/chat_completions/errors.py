"""Errors of chat completions, of OpenAI and of the servers that follow it: names, words, and where they stand.

Sources of the rows: OpenAI https://platform.openai.com/docs/guides/error-codes; Azure
https://learn.microsoft.com/azure/ai-foundry/openai/concepts/content-filter; Gemini
https://ai.google.dev/gemini-api/docs/troubleshooting; OpenRouter
https://openrouter.ai/docs/api/reference/errors-and-debugging; Groq https://console.groq.com/docs/errors; Together
https://docs.together.ai/docs/error-codes; DeepSeek https://api-docs.deepseek.com/quick_start/error_codes; vLLM
`vllm/entrypoints/openai`. Shapes of bodies as in `read_chat_error`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from actors.providers.anthropic.errors import ERRORS as MESSAGES_ERRORS
from actors.providers.chat_completions.rate_limit_headers import wait_until_reset_s
from actors.providers.foundry.errors import ERRORS as AZURE_ERRORS
from actors.providers.registry import Provider
from actors.providers.remedies import BATCHES, BOUND, CHAT_ADDRESS, MODEL, OTHER_API, SCHEMA
from actors.providers.transport.body import json_bytes
from actors.providers.transport.failures import FailureReader, Redactor, error_in
from actors.providers.transport.response_headers import RETRY_AFTER_MAX_S, duration_s, retry_after_s
from policies.failures.error_vocabulary import ErrorVocabulary, WordRule, joined
from policies.failures.failure import Failure, FailureKind
from policies.failures.told_retry import refuses_request

_STATUSES: Final = frozenset({400, 403, 404, 413, 422, 429, 500})
_REFUSED_WORDS: Final = re.compile(
    r"content management policy"  # Azure: "The response was filtered due to the prompt triggering Azure OpenAI's …"
    r"|flagged as potentially violating our usage policy"  # OpenAI, code invalid_prompt
    r"|\byour input was flagged\b"  # OpenRouter, status 403: the key is good
    r"|\bContent Exists Risk\b"  # DeepSeek
    r"|\bContent violates usage guidelines\b",  # xAI, status 403
    re.IGNORECASE,
)
_TOO_LARGE_WORDS: Final = re.compile(
    r"\bRequest too large for\b"  # OpenAI and Groq: more tokens than the limit of a minute, so never accepted
    r"|\bmaximum (?:model|context) length\b"  # OpenAI, vLLM: "longer than the maximum model length of 4096"
    r"|\b(?:exceeds?|longer than) the (?:model'?s? )?(?:max(?:imum)?|available) (?:model |context )?(?:len|size)"
    r"|\binput token count .{0,40}exceeds the maximum\b"  # Gemini
    r"|\bmaximum (?:prompt|input) length is\b"  # xAI; OpenAI, of a text to embed
    r"|\bless than the context length of the model\b"  # Together, status 403
    r"|\btokens \+ `?max_new_tokens`? must be\b",  # Together, Hugging Face TGI, status 422
    re.IGNORECASE,
)
_UNKNOWN_MODEL_WORDS: Final = re.compile(
    r"^models/\S+ is not found for API version"  # Gemini
    r"|\bis not a chat model\b"  # OpenAI, status 404 (Chanzhaoyu/chatgpt-web#1428)
    r"|\boperation does not work with the specified model\b"  # Azure, code OperationNotSupported
    r"|^\"?\S+ does not support (?:chat|generate|completions?|embeddings?)\b"  # Ollama, status 400
    r"|^Unable to access (?:non-serverless )?model\b"  # Together
    r"|^No (?:allowed |available )?(?:endpoints|providers)(?: are)? (?:found|available) for\b"  # OpenRouter
    r"|^Model does not exist\b|^The model \S+ has been (?:deprecated|decommissioned)",  # Groq
    re.IGNORECASE,
)
_OTHER_API_WORDS: Final = re.compile(r"\bonly supported in v1/responses\b", re.IGNORECASE)
"""Words of OpenAI, status 404, for a model that its other API alone serves: "This model is only supported in
v1/responses and not in v1/chat/completions." (n8n-io/n8n#18352)."""
_ACCOUNT_WORDS: Final = re.compile(
    r"\bInsufficient Balance\b|\bInsufficient credits\b|\bbilling hard limit\b|\baccount is not active\b"
    r"|\bcredits are depleted\b"  # Gemini, status 429: "Your prepayment credits are depleted." (dyad-sh/dyad#3626)
    r"|^User location is not supported\b"  # Gemini, status 400 FAILED_PRECONDITION
    # OpenRouter, status 404: what the account allows leaves none (truefoundry/models#826)
    r"|\bNo (?:endpoints|providers) (?:found|available) matching your\b",
    re.IGNORECASE,
)
_GOOGLE_REASONS: Final = dict.fromkeys(
    ("apikeyinvalid", "apikeyserviceblocked", "apikeyhttpreferrerblocked", "apikeyipaddressblocked",
     "apikeyandroidappblocked", "apikeyiosappblocked", "accesstokenexpired", "credentialsmissing"),
    FailureKind.UNAUTHORISED,
) | dict.fromkeys(
    ("servicedisabled", "billingdisabled", "consumersuspended", "consumerinvalid", "accountstateinvalid",
     "userprojectdenied", "locationpolicyviolated"),
    FailureKind.BLOCKED,
)  # fmt: skip
"""Reasons in the `details` of Google's errors that concern key or project
(https://github.com/googleapis/googleapis/blob/master/google/api/error_reason.proto). A wrong key has status 400 and the
name INVALID_ARGUMENT, as a wrong request has (continuedev/continue#10290)."""

IMAGE_ERRORS: Final = (
    "invalid_image", "invalid_image_format", "invalid_base64_image", "invalid_image_url", "image_too_large",
    "image_too_small", "image_parse_error", "invalid_image_mode", "image_file_too_large",
    "unsupported_image_media_type", "empty_image_file", "failed_to_download_image", "image_file_not_found",
)  # fmt: skip
"""Codes of images that cannot be read, in a response with status 200 (`ResponseError` of the package `openai` 3.57)."""

CHAT_ERRORS: Final = ErrorVocabulary(
    statuses={"server_error": 500, "rate_limit_exceeded": 429} | dict.fromkeys(IMAGE_ERRORS, 400),
    meanings={
        "ratelimitexceeded": FailureKind.THROTTLED,  # OpenAI, Groq
        "resourceexhausted": FailureKind.THROTTLED,  # Gemini
        "resourceunavailable": FailureKind.THROTTLED,  # OpenAI, the tier `flex`
        "requestslimit": FailureKind.THROTTLED,
        "insufficientquota": FailureKind.BLOCKED,
        "billinghardlimitreached": FailureKind.BLOCKED,
        "billingnotactive": FailureKind.BLOCKED,
        "accountdeactivated": FailureKind.BLOCKED,
        "accessterminated": FailureKind.BLOCKED,
        "unsupportedcountryregionterritory": FailureKind.BLOCKED,
        "modelnotfound": FailureKind.BLOCKED,
        "invalidmodel": FailureKind.BLOCKED,  # Mistral
        "modeldecommissioned": FailureKind.BLOCKED,  # Groq
        "organizationrestricted": FailureKind.BLOCKED,  # Groq, status 400 (NVIDIA-NeMo/Guardrails#563)
        # Groq, status 400, of one answer: the next may be whole (pydantic/pydantic-ai#2774, pydantic/pydantic-ai#4354)
        "toolusefailed": FailureKind.UNREADABLE,
        "jsonvalidatefailed": FailureKind.UNREADABLE,
        "invalidapikey": FailureKind.UNAUTHORISED,
        "unauthenticated": FailureKind.UNAUTHORISED,  # Gemini
        "contextlengthexceeded": FailureKind.TOO_LARGE,
        "stringabovemaxlength": FailureKind.TOO_LARGE,
        "exceedcontextsizeerror": FailureKind.TOO_LARGE,  # llama.cpp
        "contentfilter": FailureKind.REFUSED,  # Azure
        "responsibleaipolicyviolation": FailureKind.REFUSED,  # Azure, in `innererror`
        "contentpolicyviolation": FailureKind.REFUSED,
        "invalidprompt": FailureKind.REFUSED,  # OpenAI
        "datainspectionfailed": FailureKind.REFUSED,  # Alibaba's Model Studio
        "biopolicy": FailureKind.REFUSED,  # OpenAI, `ResponseError`
        "imagecontentpolicyviolation": FailureKind.REFUSED,  # OpenAI, `ResponseError`
        "dataresidencymismatch": FailureKind.BLOCKED,  # OpenAI, `ResponseError`
        "unavailable": FailureKind.OVERLOADED,  # Gemini, also with status 503
        "capacityexceeded": FailureKind.OVERLOADED,  # Groq, the tier `flex`, status 498
        "serveroverloaded": FailureKind.OVERLOADED,
    }
    | _GOOGLE_REASONS,
    words=(
        WordRule(kind=FailureKind.REFUSED, pattern=_REFUSED_WORDS, statuses=_STATUSES),
        WordRule(kind=FailureKind.BLOCKED, pattern=_ACCOUNT_WORDS, statuses=_STATUSES),
        WordRule(kind=FailureKind.BLOCKED, pattern=_UNKNOWN_MODEL_WORDS, statuses=_STATUSES, remedy=MODEL),
        WordRule(kind=FailureKind.BLOCKED, pattern=_OTHER_API_WORDS, statuses=_STATUSES, remedy=OTHER_API),
        WordRule(kind=FailureKind.TOO_LARGE, pattern=_TOO_LARGE_WORDS, statuses=_STATUSES),
    ),
)
"""Names and words of errors of chat completions."""

ERRORS: Final = joined(CHAT_ERRORS, AZURE_ERRORS, MESSAGES_ERRORS)
"""The same, with those of Azure, and of the Messages API, which gateways pass on."""

_TRY_AGAIN: Final = re.compile(r"\b(?:try again|retry) (?:in|after) ((?:\d+(?:\.\d+)?(?:ms|s|m|h)\s?)+)", re.IGNORECASE)
"""Wait in the text of an error, where no header names it: "Please try again in 6m0s." (OpenAI, Groq)."""
_UNKNOWN_FIELD: Final = re.compile(
    r"unsupported|not supported|unrecognized|unknown|unexpected|not permitted|use .{1,3}max_"
    r"|extra[_ ](?:inputs|fields|forbidden)",
    re.IGNORECASE,
)


_CUT_GENERATION: Final = re.compile(r"^max completion tokens reached\b", re.IGNORECASE)
"""Words of Groq in place of a generation that the bound of the reply has cut ("max completion tokens reached before
generating a valid document"): another one would be cut as well."""
_GENERATION_CHARS_SHOWN: Final = 120
"""Characters of a failed generation that a failure's message shows."""
_OF_BATCHES: Final = ("/files", "/batches", "/jobs")
"""Ends of the paths to which batches are sent."""


class ChatFailures(FailureReader):
    """Reader of failures of the client of chat completions, and of OpenAI's Responses API.

    ``remedy``: what to do where an address does not serve the API.
    """

    def __init__(self, row: Provider, redact: Redactor, address: str = "", remedy: str = CHAT_ADDRESS) -> None:
        super().__init__(row, ERRORS, redact, address)
        self._remedy = remedy

    def of_response(self, status: int, headers: Mapping[str, str], body: bytes, path: str = "") -> Failure:
        """Return the failure in a response; a status inside its error counts where the response has a good one."""
        if status < 400:
            status = status_in(body) or status
        failure = super().of_response(status, headers, body, path)
        of_answer = failure.kind in (FailureKind.UNREADABLE, FailureKind.REJECTED)
        if not of_answer or not (failed := _failed_generation(body)):
            return failure
        cut = _CUT_GENERATION.search(failed) is not None
        said = failure.message.removesuffix(f": {SCHEMA}")  # it is not the schema that is wrong
        text = f"{said.rstrip('.')}: {failed[:_GENERATION_CHARS_SHOWN]}"
        kind = FailureKind.REJECTED if cut else FailureKind.UNREADABLE
        return msgspec.structs.replace(failure, kind=kind, message=self.line(text, BOUND if cut else ""))

    def wait_s(self, kind: FailureKind, headers: Mapping[str, str], body: bytes) -> float | None:
        """Return the seconds that the provider asks us to wait: in Retry-After, in its error, or until its limit is
        reset."""
        asked = self.retry_after_s(headers)
        if asked is not None or kind not in (FailureKind.THROTTLED, FailureKind.OVERLOADED):
            return asked
        inside = wait_in(body, headers)
        return wait_until_reset_s(headers, headers) if inside is None else inside

    def read_error(self, headers: Mapping[str, str], body: bytes) -> tuple[str, str, str]:
        """Return name, message and details of an error (`read_chat_error`)."""
        return read_chat_error(body)

    def names_error(self, body: bytes) -> bool:
        """Return whether a body names an error."""
        return _error_object(body) is not None

    def remedy_of(self, path: str) -> str:
        """Return what to do where the server has no such path."""
        if path.endswith(_OF_BATCHES):
            return BATCHES
        return f"see that {' and '.join(self.row.place)} is right" if self.row.place else self._remedy


def read_chat_error(body: bytes) -> tuple[str, str, str]:
    """Return name, message and details (as JSON text) of an error; the body's text where it names none.

    OpenAI has `{"error": {"message", "type", "param", "code"}}`, where the code says more than the type; Azure adds
    `innererror`; vLLM and OpenRouter have the status as the code, OpenRouter the upstream error in `metadata.raw`;
    vLLM's older releases and Mistral leave out the object around it; Gemini has a list around it all, a `status`, and
    the reason in its `details`; FastAPI `{"detail": …}`.
    """
    error = _error_object(body)
    if error is None:
        return error_in(body)
    inner = error.get("innererror")
    inner_code = inner.get("code") if isinstance(inner, dict) else None
    details = error.get("details")
    reasons = [each.get("reason") for each in details if isinstance(each, dict)] if isinstance(details, list) else []
    named = (error.get("code"), inner_code, error.get("type"), error.get("status"), *reasons)
    names = [each for each in named if isinstance(each, str) and each and not each.isdigit()]
    name = next((each for each in names if ERRORS.meaning(each) is not None), names[0] if names else "")
    message = error.get("message")
    if not isinstance(message, str):
        message = "" if message is None else json_bytes(message).decode()
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if raw and message.startswith("Provider returned error"):
        message += f": {raw if isinstance(raw, str) else json_bytes(raw).decode()}"
    told = {n: error[n] for n in ("code", "param", "innererror", "details", "metadata") if error.get(n) is not None}
    return name, message, json_bytes(told).decode() if told else ""


def _failed_generation(body: bytes) -> str:
    """Return what a model wrote where it was no tool use, or no JSON of the schema; empty where an error has none. Groq
    shows it so (https://console.groq.com/docs/errors)."""
    found = (_error_object(body) or {}).get("failed_generation")
    return found if isinstance(found, str) else ""


def status_in(body: bytes) -> int:
    """Return the HTTP status that an error holds as its code; 0 where it holds none."""
    error = _error_object(body) or {}
    code = error.get("code")
    code = int(code) if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3 else code
    return code if isinstance(code, int) and 400 <= code < 600 else 0


def wait_in(body: bytes, headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an error asks to wait: Google's `RetryInfo`, OpenRouter's headers within it, or words;
    None where it asks for none. `headers`: those of the response, whose Date is the provider's clock."""
    error = _error_object(body)
    if error is None:
        return None
    metadata = error.get("metadata")
    limits = metadata.get("headers") if isinstance(metadata, dict) else None
    if isinstance(limits, dict):
        named = {str(name).lower(): str(value) for name, value in limits.items()}
        for found in (retry_after_s(named), wait_until_reset_s(named, headers)):
            if found is not None:
                return found
    details = error.get("details")
    for each in details if isinstance(details, list) else ():
        if isinstance(each, dict) and str(each.get("@type", "")).endswith("google.rpc.RetryInfo"):
            return _bounded(duration_s(str(each.get("retryDelay", ""))))
    words = _TRY_AGAIN.search(str(error.get("message", ""))[:2_000])
    return _bounded(duration_s(words[1])) if words else None


def refuses_field(outcome: object, field: str) -> bool:
    """Return whether a request was refused because it holds this field (`max_tokens`, `stream_options`, …)."""
    if not isinstance(outcome, Failure) or not refuses_request(outcome) or outcome.status not in (400, 422):
        return False
    named = re.search(rf"\b{field}\b", outcome.message) is not None
    return named and _UNKNOWN_FIELD.search(outcome.message) is not None


def asks_for_field(outcome: object, field: str) -> bool:
    """Return whether a request was refused because it lacks this field, which holds under another name what it has."""
    if not isinstance(outcome, Failure) or not refuses_request(outcome) or outcome.status not in (400, 422):
        return False
    asked = rf"\b(?:use|requires?|expects?|needs?)\W{{1,3}}{field}\b|\b{field}\W{{1,3}}(?:instead|is required)\b"
    return re.search(asked, outcome.message, re.IGNORECASE) is not None


def _bounded(seconds: float | None) -> float | None:
    return None if seconds is None else min(seconds, RETRY_AFTER_MAX_S)


def _error_object(body: bytes) -> dict[str, Any] | None:
    """Return the object that describes an error; None where a body has none."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    if not isinstance(found, dict):
        return None
    error = found.get("error")
    if isinstance(error, dict):
        return error
    flat = found.get("object") == "error" or ("message" in found and ("type" in found or "code" in found))
    if flat and not found.get("choices"):
        return found
    return None
