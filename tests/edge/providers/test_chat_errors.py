"""Errors of chat completions as servers send them, each with its source; bodies are written by hand from there."""

from __future__ import annotations

from typing import Any

import pytest

from actors.providers.chat_completions.errors import ChatFailures, asks_for_field, refuses_field
from actors.providers.chat_completions.rate_limit_headers import rate_limits, reports_limits
from actors.providers.messages.vocabulary import classify
from actors.providers.registry import row_of
from actors.providers.remedies import CHAT_ADDRESS, MODEL, OTHER_API, has_remedy
from actors.providers.transport.response_headers import duration_s
from policies.failures.failure import Failure, FailureKind
from policies.limits.limit import RateLimits, ReportedBucket
from tests.edge.support.scripted_http_server import compact

K = FailureKind
TPM = (
    "Rate limit reached for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Used 29500, "
    "Requested 900. Please try again in 800ms. Visit https://platform.openai.com/account/rate-limits to learn more."
)
AZURE_FILTER = {
    "error": {
        "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        "type": None, "param": "prompt", "code": "content_filter", "status": 400,
        "innererror": {"code": "ResponsibleAIPolicyViolation",
                       "content_filter_result": {"violence": {"filtered": True, "severity": "high"}}},
    }
}  # fmt: skip
GEMINI_QUOTA = [
    {"error": {"code": 429, "message": "You exceeded your current quota, please check your plan and billing details.",
               "status": "RESOURCE_EXHAUSTED",
               "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}]}}
]  # fmt: skip


GENERATIONS: list[tuple[str, Any, dict[str, str], FailureKind]] = [
    # groq/groq-typescript#28, pydantic/pydantic-ai#4350: the model's tool use, or text in its place
    ("Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.",
     "tool_use_failed", {"failed_generation": "<function=answer{}</function>"}, K.UNREADABLE),
    # HunorLaczko/ha-groq-cloud-api#20: without the generation
    ("tool call validation failed: parameters for tool answer did not match schema: errors: [`/a`: expected array]",
     "tool_use_failed", {}, K.UNREADABLE),
    ("Failed to generate JSON. Please adjust your prompt.", "json_validate_failed", {"failed_generation": ""}, K.UNREADABLE),
    ("Parsing failed.", None, {"failed_generation": "maximum context length"}, K.UNREADABLE),  # no words of the server's
    # cut by the bound: another would be, too
    ("Failed to validate JSON.", "json_validate_failed",
     {"failed_generation": "max completion tokens reached before generating a valid document"}, K.REJECTED),
    ("Parsing failed.", None, {}, K.REJECTED),
]  # fmt: skip
"""Message, code and further fields of Groq's errors about a generation, and their kind."""


def openai(
    message: str, kind: str | None = "invalid_request_error", code: Any = None, param: Any = None, **more: str
) -> dict[str, Any]:  # fmt: skip
    return {"error": {"message": message, "type": kind, "param": param, "code": code} | more}


def google(message: str, status: str, reason: Any = None) -> list[dict[str, Any]]:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}, "no object"]
    return [{"error": {"code": 400, "message": message, "status": status, "details": details}}]


def read(status: int, body: Any, **headers: str) -> Failure:
    reader = ChatFailures(row_of("openai"), lambda text: text, "http://gpu:8000/v1")
    data = body if isinstance(body, bytes) else compact(body)
    return reader.of_response(status, {name.replace("_", "-"): v for name, v in headers.items()}, data, "/chat/completions")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        # OpenAI: https://platform.openai.com/docs/guides/error-codes
        (401, openai("Incorrect API key provided: sk-…", code="invalid_api_key"), K.UNAUTHORISED),
        (403, openai("Country, region, or territory not supported", "request_forbidden",
                     "unsupported_country_region_territory"), K.BLOCKED),
        (429, openai(TPM, "tokens", "rate_limit_exceeded"), K.THROTTLED),
        (429, openai("Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, "
                     "Requested 40000.", "tokens", "rate_limit_exceeded"), K.TOO_LARGE),
        (429, openai("You exceeded your current quota, please check your plan and billing details.",
                     "insufficient_quota", "insufficient_quota"), K.BLOCKED),
        (404, openai("The model `gpt-9` does not exist or you do not have access to it.", code="model_not_found"),
         K.BLOCKED),
        (404, openai("This model is only supported in v1/responses and not in v1/chat/completions.", param="model"),
         K.BLOCKED),  # n8n-io/n8n#18352
        (404, openai("This is not a chat model and thus not supported in the v1/chat/completions endpoint. Did you mean to "
                     "use v1/completions?", param="model"), K.BLOCKED),  # Chanzhaoyu/chatgpt-web#1428
        (404, openai("openai error: This is not a chat model and thus not supported", "APIError", "404"), K.BLOCKED),
        (400, openai("This model's maximum input length is 8192 tokens"), K.TOO_LARGE),
        (400, openai("This model's maximum context length is 128000 tokens. However, your messages resulted in 130005 "
                     "tokens.", code="context_length_exceeded", param="messages"), K.TOO_LARGE),
        (400, openai("Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
                     code="invalid_prompt"), K.REFUSED),
        (400, openai("Invalid schema for response_format 'answer'", param="response_format"), K.REJECTED),
        (500, openai("The server had an error while processing your request.", "server_error"), K.TRANSIENT),
        (503, openai("The engine is currently overloaded, please try again later.", "server_error"), K.OVERLOADED),
        # Azure: https://learn.microsoft.com/azure/ai-foundry/openai/concepts/content-filter
        (400, AZURE_FILTER, K.REFUSED),
        (404, openai("The API deployment for this resource does not exist.", code="DeploymentNotFound"), K.BLOCKED),
        (400, {"error": {"code": "OperationNotSupported", "message": "The chatCompletion operation does not work with the "
                         "specified model, e. Please choose different model and try again."}}, K.BLOCKED),
        # vLLM: the status as code; older releases without the object around it; FastAPI's form
        (400, openai("This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
                     "BadRequestError", 400), K.TOO_LARGE),
        (400, {"object": "error", "type": "BadRequestError", "code": 400,
               "message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096."},
         K.TOO_LARGE),
        (400, openai("You passed 5001 input tokens and requested 100 output tokens. However, the model's context length is "
                     "only 4096 tokens, resulting in a maximum input length of 3996 tokens.", "BadRequestError", 400),
         K.TOO_LARGE),
        (404, openai("The model `m` does not exist.", "NotFoundError", 404), K.BLOCKED),
        # SGLang, and Together behind it; xAI
        (400, {"object": "error", "type": "BadRequestError", "code": 400,
               "message": "The input (5000 tokens) is longer than the model's context length (4096 tokens)."}, K.TOO_LARGE),
        (400, openai("This model's maximum prompt length is 131072 but the request contains 537812 tokens."), K.TOO_LARGE),
        # LM Studio: continuedev/continue#10150
        (400, {"error": "No models loaded. Please load a model in the developer page or use the `lms load` command."},
         K.BLOCKED),
        (400, {"error": 'Failed to load model "gpt-oss-20b". Error: Error loading model.'}, K.BLOCKED),
        (400, {"error": "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with "
                        "context length of only 4096 tokens, which is not enough."}, K.TOO_LARGE),
        # Hugging Face TGI: huggingface/text-generation-inference#1510
        (424, {"error": "Request failed during generation: Server error: CUDA out of memory", "error_type": "generation"},
         K.TRANSIENT),
        # statuses that say nothing of the request
        *((status, openai("no"), K.TRANSIENT) for status in (408, 409, 421, 424, 425, 460, 499)),
        *((status, openai("no"), K.REJECTED) for status in (400, 406, 410, 418, 422, 423, 428, 431)),
        (422, {"detail": [{"loc": ["body", "max_tokens"], "msg": "Input should be a valid integer"}]}, K.REJECTED),
        # llama.cpp: tools/server
        (400, {"error": {"code": 400, "type": "exceed_context_size_error",
                         "message": "the request exceeds the available context size, try increasing it"}}, K.TOO_LARGE),
        (503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, K.OVERLOADED),
        # Ollama: openai/openai.go
        (404, openai('model "llama9" not found, try pulling it first', "api_error"), K.BLOCKED),
        (400, openai('"nomic-embed-text" does not support chat', "api_error"), K.BLOCKED),
        (400, openai('"smollm2" does not support tools', "api_error"), K.REJECTED),  # a model that answers other rows
        (400, openai("the prompt is longer than the context length currently available", "api_error"), K.TOO_LARGE),
        # OpenRouter: https://openrouter.ai/docs/api/reference/errors-and-debugging
        (402, {"error": {"code": 402, "message": "Insufficient credits"}}, K.BLOCKED),
        (403, {"error": {"code": 403, "message": "Your chosen model requires moderation and your input was flagged",
                         "metadata": {"reasons": ["violence"], "flagged_input": "…"}}}, K.REFUSED),
        (404, {"error": {"code": 404, "message": "No endpoints found for a/b."}}, K.BLOCKED),
        # truefoundry/models#826; of the request, whose image another row may not have
        *((404, {"error": {"code": 404, "message": f"{words}. Configure: https://openrouter.ai/settings/privacy"}}, kind)
          for words, kind in (("No endpoints found matching your data policy (Paid model training)", K.BLOCKED),
                              ("No endpoints available matching your guardrail restrictions and data policy", K.BLOCKED),
                              ("No endpoints found that support image input", K.REJECTED))),
        (400, {"error": {"code": 400, "message": "Provider returned error",
                         "metadata": {"raw": '{"message":"This endpoint\'s maximum context length is 8192 tokens"}'}}},
         K.TOO_LARGE),
        (200, {"error": {"code": 429, "message": "Rate limit exceeded: free-models-per-min."}}, K.THROTTLED),
        (200, {"error": {"code": 502, "message": "upstream"}}, K.TRANSIENT),
        # Gemini: https://ai.google.dev/gemini-api/docs/troubleshooting
        (429, GEMINI_QUOTA, K.THROTTLED),
        (404, [{"error": {"code": 404, "status": "NOT_FOUND",
                          "message": "models/g is not found for API version v1main, or is not supported"}}], K.BLOCKED),
        (400, [{"error": {"code": 400, "status": "INVALID_ARGUMENT",
                          "message": "The input token count (1200000) exceeds the maximum number of tokens allowed"}}],
         K.TOO_LARGE),
        (503, [{"error": {"code": 503, "status": "UNAVAILABLE", "message": "The model is overloaded."}}], K.OVERLOADED),
        # Google's reasons: continuedev/continue#8516, #10290; google/api/error_reason.proto
        *((400, google("API key not valid. Please pass a valid API key.", "INVALID_ARGUMENT", reason), kind)
          for reason, kind in (("API_KEY_INVALID", K.UNAUTHORISED), ("BILLING_DISABLED", K.BLOCKED),
                               ("FIELD_VIOLATION", K.REJECTED), (None, K.REJECTED), (7, K.REJECTED))),
        (403, google("Gemini API has not been used in project 1 before or it is disabled.", "PERMISSION_DENIED",
                     "SERVICE_DISABLED"), K.BLOCKED),
        (429, google("Quota exceeded", "RESOURCE_EXHAUSTED", "RATE_LIMIT_EXCEEDED"), K.THROTTLED),
        # dyad-sh/dyad#3626
        (429, google("Your prepayment credits are depleted. Please go to AI Studio", "RESOURCE_EXHAUSTED"), K.BLOCKED),
        (400, google("User location is not supported for the API use.", "FAILED_PRECONDITION"), K.BLOCKED),
        (499, google("The operation was cancelled.", "CANCELLED"), K.TRANSIENT),  # googleapis/python-genai#2506
        # Groq: https://console.groq.com/docs/errors
        *((400, openai(words, code=code, **failed), kind) for words, code, failed, kind in GENERATIONS),
        (400, openai("Organization has been restricted. Please reach out to support", code="organization_restricted"),
         K.BLOCKED),  # NVIDIA-NeMo/Guardrails#563
        (413, openai("Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000", "tokens",
                     "rate_limit_exceeded"), K.TOO_LARGE),
        (498, openai("Flex tier capacity exceeded", code="capacity_exceeded"), K.OVERLOADED),
        # Mistral, DeepSeek, Together: https://docs.together.ai/docs/error-codes
        (400, {"object": "error", "message": "Invalid model: m", "type": "invalid_model", "code": "1500"}, K.BLOCKED),
        (402, openai("Insufficient Balance", "unknown_error", "invalid_request_error"), K.BLOCKED),
        (400, openai("Content Exists Risk"), K.REFUSED),
        (403, {"error": {"message": "Input token count + max_tokens parameter must be less than the context length of "
                                    "the model being queried."}}, K.TOO_LARGE),
        # LiteLLM passes on what it was told, by Anthropic too
        (400, openai("litellm.BadRequestError: AnthropicException - Your credit balance is too low", None, "400"), K.BLOCKED),
        # and of a wrong key where it has no database: BerriAI/litellm#12273
        (400, openai("No connected db.", "no_db_connection", "400"), K.UNAUTHORISED),
        # its budgets, by name and by words: BerriAI/litellm#4208, #14144, #37000, #40002
        (400, openai("Budget has been exceeded! Current cost: 0.0010747, Max budget: 0.0", "auth_error", 400), K.BLOCKED),
        (429, openai("Your team has spent its share.", "budget_exceeded", "429"), K.BLOCKED),
        (400, openai("litellm.BadRequestError: OpenAIException - Budget has been exceeded! Current cost: 14.1, Max budget: 10",
                     None, "400"), K.BLOCKED),
        (400, openai("ExceededBudget: User=ann over budget. Spend=0.0009, Budget=0.0001", "budget_exceeded", "400"), K.BLOCKED),
        (400, openai("litellm.BadRequestError: Litellm_proxyException - ExceededBudget: User=x over budget.", None, "400"), K.BLOCKED),
        (429, openai("LiteLLM Virtual Key: 97c29, key_alias: None, exceeded budget for model=m", "auth_error", "429"), K.BLOCKED),
        # of the user of a row alone: https://docs.litellm.ai/docs/proxy/users
        *((status, openai(f"{before}ExceededBudget: End User=ann over budget. Spend=0.0009, Budget=0.0001", name, str(status)), K.REJECTED)
          for status in (400, 401, 422, 429) for name in ("auth_error", "budget_exceeded")
          for before in ("", "litellm.BadRequestError: Litellm_proxyException - ")),
        (429, openai("LiteLLM End User: ann, exceeded budget for model=m", "budget_exceeded", "429"), K.REJECTED),
        # and of one request
        (400, openai("The thinking token budget has been exceeded"), K.REJECTED),
        (400, openai("thinking: the prompt crossed budget, exceeded budget for model m"), K.REJECTED),
        (429, openai("No deployments available - crossed budget: Exceeded budget for deployment model_name: m: 0.363 >= 1d",
                     None, "429"), K.BLOCKED),
        (429, openai("LiteLLM User: engineer-1, exceeded budget for model=m", "budget_exceeded", "429"), K.BLOCKED),
        (400, openai("Authentication Error - Expired Key.", "expired_key", "400"), K.UNAUTHORISED),
        (400, openai("{'error': '/chat/completions: Invalid model name passed in model=nope. Call `/v1/models` to view "
                     "available models for your key.'}", "None", "400"), K.BLOCKED),
    ],
)  # fmt: skip
def test_errors_of_servers(status: int, body: Any, kind: FailureKind) -> None:
    assert read(status, body).kind is kind


@pytest.mark.parametrize(
    "words", ["Failed to validate JSON. Please adjust your prompt.", "Parsing failed", "JSON schema conversion failed", "w " * 500]
)
def test_a_generation_that_was_cut_is_told_with_the_bound_that_cut_it(words: str) -> None:
    cut = "max completion tokens reached before generating a valid document"
    found = read(400, openai(words, code="json_validate_failed", failed_generation=cut)).message
    assert found.endswith(": give a larger --max-output-tokens") and "--schema-as" not in found
    assert cut in found or len(words) > 200
    whole = read(400, openai(words, code="json_validate_failed", failed_generation="{")).message
    assert "--max-output-tokens" not in whole


def test_a_failed_generation_is_shown_as_far_as_it_fits() -> None:
    body = openai("See 'failed_generation'.", code="tool_use_failed", failed_generation="<function=answer>" + "x" * 999)
    found = read(400, body).message
    assert found.startswith("See 'failed_generation': <function=answer>xxx") and len(found) < 200


def test_a_model_of_another_api_is_told_with_what_to_do() -> None:
    found = read(404, openai("This model is only supported in v1/responses and not in v1/chat/completions."))
    assert found.message.endswith(f": {OTHER_API}") and has_remedy(found.message)


def test_the_messages_api_reads_a_gateways_errors_alike() -> None:
    """LiteLLM, LM Studio, SGLang and Ollama serve both APIs."""
    for status, name, words, kind in (
        (429, "budget_exceeded", "spent", K.BLOCKED), (400, "", "Budget has been exceeded! Team=t", K.BLOCKED),
        (400, "expired_key", "Expired Key", K.UNAUTHORISED), (400, "", "No models loaded. Please load one", K.BLOCKED),
        (400, "", "The input is longer than the model's context length (4096 tokens).", K.TOO_LARGE),
        (400, "", "the model's context length is only 4096 tokens", K.TOO_LARGE),
    ):  # fmt: skip
        assert classify(status, name, words) is kind


def test_messages_say_which_model_is_missing_and_what_the_upstream_said() -> None:
    assert read(404, openai("The model `gpt-9` does not exist", code="model_not_found")).message.endswith(f": {MODEL}")
    raw = {"error": {"code": 400, "message": "Provider returned error", "metadata": {"raw": "no such tool"}}}
    assert read(400, raw).message == "Provider returned error: no such tool"


@pytest.mark.parametrize("body", [b"<html><h1>404</h1></html>", b"404 page not found", b'{"detail":"Not Found"}'])
def test_an_address_without_the_api_is_named_with_what_to_do(body: bytes) -> None:
    found = read(404, body)
    assert found.kind is K.BLOCKED
    assert "http://gpu:8000/v1/chat/completions answered 404" in found.message and found.message.endswith(CHAT_ADDRESS)


@pytest.mark.parametrize(
    ("body", "headers", "wait_s"),
    [
        (openai(TPM, "tokens", "rate_limit_exceeded"), {}, 0.8),
        (openai("… Please try again in 6m0s.", "requests", "rate_limit_exceeded"), {}, 360.0),
        (openai("… Please try again in 7.66s. Need more tokens?", "tokens", "rate_limit_exceeded"), {}, 7.66),
        (openai(TPM, "tokens", "rate_limit_exceeded"), {"retry_after": "2"}, 2.0),
        (openai(TPM, "tokens", "rate_limit_exceeded"), {"retry_after": "2", "retry_after_ms": "1500"}, 1.5),
        (GEMINI_QUOTA, {}, 34.07),
        (openai("slow down"), {}, None),
    ],
)
def test_the_wait_that_is_asked_for(body: Any, headers: dict[str, str], wait_s: float | None) -> None:
    assert read(429, body, **headers).retry_after_s == wait_s


@pytest.mark.parametrize(
    ("message", "status", "field", "refused"),
    [
        ("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
         400, "max_tokens", True),
        ("Unrecognized request argument supplied: max_completion_tokens", 400, "max_completion_tokens", True),
        ('{"detail":[{"loc":["body","max_completion_tokens"],"msg":"Extra inputs are not permitted"}]}', 422,
         "max_completion_tokens", True),
        ("max_tokens is too large: 9000. This model supports at most 4096 completion tokens", 400, "max_tokens", False),
        ("max_tokens is not supported", 500, "max_tokens", False),
        ("temperature is not supported", 400, "max_tokens", False),
        ("'max_completion_tokens' is not supported", 400, "max_tokens", False),
        ('{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"]}]}', 422, "stream_options", True),
    ],
)  # fmt: skip
def test_a_refusal_of_a_field(message: str, status: int, field: str, refused: bool) -> None:
    for told in ({}, {"x_should_retry": "true"}, {"x_should_retry": "false"}):
        assert refuses_field(read(status, openai(message), **told), field) == refused


@pytest.mark.parametrize(
    ("message", "status", "asked"),
    [
        ("Use 'max_completion_tokens' instead.", 400, True),
        ("this model requires max_completion_tokens", 422, True),
        ("max_completion_tokens is required", 400, True),
        ("max_completion_tokens is too large: 9000", 400, False),
        ("Use max_completion_tokens_v2", 400, False),
        ("Use max_completion_tokens", 500, False),
    ],
)
def test_a_refusal_that_asks_for_another_field(message: str, status: int, asked: bool) -> None:
    assert asks_for_field(read(status, openai(message)), "max_completion_tokens") == asked


# -- rate limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6m0s", 360.0), ("1s", 1.0), ("20ms", 0.02), ("1h2m3.5s", 3_723.5), ("2m59.56s", 179.56), ("12", 12.0),
        ("1d", 86_400.0), ("", None), (None, None), ("soon", None), ("1s ago", None), ("-1", None),
    ],
)  # fmt: skip
def test_durations(text: str | None, seconds: float | None) -> None:
    assert duration_s(text) == seconds


def headers(**values: str) -> dict[str, str]:
    return {f"x-ratelimit-{name.replace('_', '-')}": value for name, value in values.items()}


@pytest.mark.parametrize(
    ("given", "requests", "tokens"),
    [
        (headers(limit_requests="5000", remaining_requests="4999", reset_requests="12ms", limit_tokens="160000",
                 remaining_tokens="159976", reset_tokens="9ms"),  # OpenAI
         ReportedBucket(5_000, 4_999, 0.012), ReportedBucket(160_000, 159_976, 0.009)),
        (headers(limit_requests="-1", remaining_requests="-1", limit_tokens="-1", reset_tokens="0"),  # Azure
         ReportedBucket(), ReportedBucket()),
        (headers(limit_requests="14400", remaining_requests="14370", reset_requests="2m59.56s", limit_tokens="18000",
                 remaining_tokens="17997", reset_tokens="7.66ms"),  # Groq: requests of a day
         ReportedBucket(), ReportedBucket(18_000, 17_997, 0.00766)),
        (headers(limit_tokens_minute="500000", remaining_tokens_minute="499990"),  # Mistral
         ReportedBucket(), ReportedBucket(500_000, 499_990, None)),
        (headers(limit_tokens_minute="5000000", remaining_tokens_minute="4999911", tokens_query_cost="52",
                 limit_req_minute="720", remaining_req_minute="717"),  # Mistral: mistralai/client-ts#169
         ReportedBucket(720, 717, None), ReportedBucket(5_000_000, 4_999_911, None)),
        (headers(limit_requests_day="1000000000", limit_tokens_minute="60000", remaining_requests_day="999997455",
                 remaining_tokens_minute="59000", reset_requests_day="33011.38", reset_tokens_minute="11.38"),  # Cerebras
         ReportedBucket(), ReportedBucket(60_000, 59_000, 11.38)),
        (headers(limit="10", remaining="9", reset="1") | {"x-tokenlimit-limit": "3000", "x-tokenlimit-remaining": "2900"},
         ReportedBucket(600, 9, 1.0), ReportedBucket(180_000, 2_900, 1.0)),  # Together: limits of a second
        (headers(limit="0.5", remaining="0") | {"x-tokenlimit-limit": "0.001"},
         ReportedBucket(30, 0, None), ReportedBucket()),
    ],
)  # fmt: skip
def test_limits_in_headers(given: dict[str, str], requests: ReportedBucket, tokens: ReportedBucket) -> None:
    """Headers made by hand from each provider's documentation (the sources: ``rate_limit_headers``)."""
    assert reports_limits(given)
    assert rate_limits(given) == RateLimits(requests, tokens)
    assert not reports_limits({"content-type": "application/json"})


def test_a_limit_whose_window_is_untold_is_no_rate() -> None:
    openrouter = headers(limit="50", remaining="3", reset="1788912000000")
    assert not reports_limits(openrouter)
    assert rate_limits(openrouter) == RateLimits()


NOW = "Sun, 29 Nov 2026 12:00:00 GMT"
NOW_S = 1_795_953_600


def free(reset: object, remaining: str = "0") -> dict[str, Any]:
    """OpenRouter's error of a free model, as https://openrouter.ai/docs/api_reference/limits describes it."""
    named = {"X-RateLimit-Limit": "8", "X-RateLimit-Remaining": remaining, "X-RateLimit-Reset": reset}
    message = "Rate limit exceeded: limit_rpm/qwen/qwen3-coder"
    return {"error": {"message": message, "code": 429, "metadata": {"headers": named, "provider_name": None}}}


SLOW = {"error": {"message": "slow", "type": "dynamic_request_limited"}}


@pytest.mark.parametrize(
    ("status", "body", "given", "wait_s"),
    [
        (429, free(f"{NOW_S + 40}000"), {}, 40.0),  # OpenRouter: Unix time in milliseconds
        (200, free(f"{NOW_S + 40}000"), {}, 40.0),
        (429, free(NOW_S + 40), {}, 40.0),
        (429, free(f"{NOW_S + 3 * 86_400}000"), {}, 86_400.0),  # a day at most
        (429, free(f"{NOW_S - 5}000"), {}, 0.0),
        (429, free(f"{NOW_S + 40}000", remaining="3"), {}, None),  # another limit than this one
        (429, free("soon"), {}, None),
        (429, free(f"{NOW_S + 40}000"), {"retry-after": "7"}, 7.0),
        (429, {"error": {"message": "x", "metadata": {"headers": {"Retry-After": 9}}}}, {}, 9.0),
        (429, SLOW, headers(reset="2", remaining="0"), 2.0),  # Together: "the suggested retry interval"
        (503, SLOW, headers(reset="1.5"), 1.5),
        (429, SLOW, headers(reset=f"{NOW_S + 12}"), 12.0),
        (429, SLOW, headers(reset="6m0s"), 360.0),
        (429, SLOW, headers(reset="2", remaining="5"), None),
        (429, SLOW, headers(reset_requests="12ms", remaining_requests="0"), None),  # when the bucket is full, not free
        (500, SLOW, headers(reset="2"), None),
        (429, {"error": {"message": "Please try again in 3s."}}, headers(reset="60"), 3.0),
    ],
)  # fmt: skip
def test_a_wait_until_a_limit_is_reset(status: int, body: Any, given: dict[str, str], wait_s: float | None) -> None:
    found = read(status, body, date=NOW, **given)
    assert found.retry_after_s == wait_s, found
