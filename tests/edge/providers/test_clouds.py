"""Amazon Bedrock, Google Vertex AI and Microsoft Foundry: the SDK's own clients against servers of this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.providers.bedrock.errors import ERRORS
from actors.providers.credentials.credential import Credential
from actors.providers.messages.client import AnthropicModel
from actors.providers.messages.dialect import headers_to_send
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.support import cloud_server
from tests.edge.support.scripted_http_server import MESSAGE, Answer, Asked, Scripted, compact, http, scripted, streamed
from tests.edge.support.wired_model import BODY
from tests.support.patience import PATIENCE_S

K = FailureKind
MADE: dict[str, Callable[..., Credential]] = {
    "bedrock": cloud_server.bedrock, "vertex": cloud_server.vertex, "foundry": cloud_server.foundry,
}  # fmt: skip
PATHS = {
    "bedrock": "/model/claude-test/invoke",
    "vertex": "/v1/projects/a-project/locations/eu-west-1/publishers/anthropic/models/claude-test:rawPredict",
    "foundry": "/anthropic/v1/messages",
}
STREAM_PATHS = {
    "bedrock": "/model/claude-test/invoke-with-response-stream",
    "vertex": PATHS["vertex"].replace("rawPredict", "streamRawPredict"),
    "foundry": PATHS["foundry"],
}
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": MESSAGE | {"content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "yes — é"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 2},
    },
    {"type": "message_stop"},
]


@asynccontextmanager
async def connected(
    cloud: str, script: Callable[[Asked], Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncIterator[tuple[Scripted, AnthropicModel]]:
    """A cloud on this machine, and a model that speaks to it."""
    async with scripted(lambda asked: cloud_server.gives_token(asked) or script(asked)) as server:
        if cloud == "vertex":
            monkeypatch.setenv(
                "GOOGLE_APPLICATION_CREDENTIALS", str(cloud_server.service_account(tmp_path, server.url))
            )
        model = AnthropicModel(settings.pop("credential", None) or MADE[cloud](server.url), **settings)
        try:
            yield server, model
        finally:
            await model.close()


def _asked(server: Scripted) -> list[Asked]:
    return [asked for asked in server.asked if asked.target != "/token"]


@pytest.mark.parametrize("cloud", MADE)
async def test_a_call_goes_where_the_cloud_wants_it_and_is_signed(cloud: str, tmp_path, monkeypatch) -> None:
    async with connected(cloud, lambda _: http(MESSAGE), tmp_path, monkeypatch) as (server, model):
        reply = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
    assert isinstance(reply, Reply), reply
    assert (reply.text, reply.usage.output_tokens) == ("yes — é", 2)
    [asked] = _asked(server)
    assert (asked.method, asked.target) == ("POST", PATHS[cloud])
    sent = asked.json
    assert sent["messages"] == [{"role": "user", "content": "é?"}] and sent["max_tokens"] == 16
    if cloud == "foundry":
        assert sent["model"] == "claude-test"
        assert asked.headers["x-api-key"] == cloud_server.FOUNDRY_KEY
        return
    assert "model" not in sent and "anthropic_version" in sent
    signed = asked.headers["authorization"]
    if cloud == "vertex":
        assert signed == f"Bearer {cloud_server.TOKEN}"
    else:
        assert (
            signed.startswith(f"AWS4-HMAC-SHA256 Credential={cloud_server.KEYS[0]}/")
            and f"/{cloud_server.REGION}/bedrock/" in signed
        )
        assert asked.headers["x-amz-security-token"] == cloud_server.KEYS[2]
        assert cloud_server.KEYS[1] not in str(asked.headers)


def test_the_users_own_headers_go_to_the_users_own_address_alone() -> None:
    headers = (("anthropic-beta", "files-2025"), ("authorization", "Bearer of-a-gateway"), ("x-team", "blue"))
    credential = Credential(custom_headers=headers, platform=cloud_server.bedrock().platform)
    assert headers_to_send(credential) == {"anthropic-beta": "files-2025"}
    own = Credential(custom_headers=headers, platform=cloud_server.bedrock().platform, base_url="http://gateway")
    assert headers_to_send(own) == dict(headers)


@pytest.mark.parametrize(
    ("credential", "address"),
    [
        (cloud_server.bedrock(), "https://bedrock-runtime.eu-west-1.amazonaws.com"),
        (cloud_server.vertex(), "https://eu-west-1-aiplatform.googleapis.com/v1"),
        (cloud_server.foundry(), "https://a-resource.services.ai.azure.com/anthropic"),
    ],
    ids=["bedrock", "vertex", "foundry"],
)
async def test_where_a_cloud_is_the_sdk_knows(credential: Credential, address: str) -> None:
    model = AnthropicModel(credential)
    assert (await model.address()).rstrip("/") == address
    assert model.endpoint == credential.platform.endpoint  # type: ignore[union-attr]


async def test_bedrock_takes_a_bearer_token_in_place_of_keys(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "of-the-environment-of-the-branch")
    async with connected("bedrock", lambda _: http(MESSAGE), tmp_path, monkeypatch) as (server, model):
        assert isinstance(await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S), Reply)
        other = AnthropicModel(cloud_server.bedrock(server.url, api_key=cloud_server.BEARER))
        assert isinstance(await other.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S), Reply)
        await other.close()
    by_keys, by_token = (asked.headers["authorization"] for asked in _asked(server))
    assert by_keys.startswith("AWS4-HMAC-SHA256")  # whatever stands in the branch's own environment
    assert by_token == f"Bearer {cloud_server.BEARER}"


@pytest.mark.parametrize("cloud", MADE)
async def test_a_long_reply_is_streamed_and_comes_as_one_message(cloud: str, tmp_path, monkeypatch) -> None:
    parts = (
        http(cloud_server.framed(EVENTS), content_type="application/vnd.amazon.eventstream")
        if cloud == "bedrock"
        else http(streamed(EVENTS), content_type="text/event-stream")
    )
    seen: list[int] = []
    async with connected(cloud, lambda _: parts, tmp_path, monkeypatch, stream_above_tokens=8) as (server, model):
        reply = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S, progress=seen.append)
    assert isinstance(reply, Reply), reply
    assert (reply.text, reply.stop_reason, reply.usage.output_tokens) == ("yes — é", "end_turn", 2)
    assert seen
    [asked] = _asked(server)
    assert asked.target == STREAM_PATHS[cloud]
    assert asked.json.get("stream") is (None if cloud == "bedrock" else True)


async def test_tokens_are_counted_where_the_sdk_knows_a_counter(tmp_path, monkeypatch) -> None:
    async with connected("vertex", lambda _: http({"input_tokens": 7}), tmp_path, monkeypatch) as (server, model):
        assert await model.count_tokens(BODY) == 7
    assert _asked(server)[0].target == PATHS["vertex"].replace("claude-test:", "count-tokens:")
    async with connected("foundry", lambda _: http({"input_tokens": 8}), tmp_path, monkeypatch) as (server, model):
        assert await model.count_tokens(BODY) == 8
    async with connected("bedrock", lambda _: http({"input_tokens": 9}), tmp_path, monkeypatch) as (server, model):
        assert await model.count_tokens(BODY) is None
        assert not server.asked


def aws(name: str, message: str, status: int) -> Answer:
    return http({"message": message}, status, x_amzn_errortype=f"{name}:http://internal.amazon.com/coral/com.amazon/")


def google(code: str, message: str, status: int, listed: bool = False) -> Answer:
    error = {"error": {"code": status, "message": message, "status": code, "details": [{"@type": "x"}]}}
    return http(compact([error] if listed else error), status)


def azure(code: str, message: str, status: int, **headers: str) -> Answer:
    return http({"error": {"code": code, "message": message}}, status, **headers)


def own(kind: str, message: str, status: int) -> Answer:
    return http({"type": "error", "error": {"type": kind, "message": message}}, status)


FAILURES: list[tuple[str, Answer, FailureKind]] = [
    ("bedrock", aws("ThrottlingException", "Too many requests, please wait before trying again.", 429), K.THROTTLED),
    ("bedrock", aws("ThrottlingException", "Too many tokens per day, please wait before trying again.", 429), K.BLOCKED),
    ("bedrock", aws("ModelNotReadyException", "The model is not ready to serve inference requests.", 429), K.OVERLOADED),
    ("bedrock", aws("ServiceQuotaExceededException", "Your request exceeds the service quota.", 400), K.BLOCKED),
    ("bedrock", aws("AccessDeniedException", "User: arn:aws:iam::1:user/x is not authorized to perform: bedrock:InvokeModel", 403), K.UNAUTHORISED),
    ("bedrock", aws("AccessDeniedException", "You don't have access to the model with the specified model ID.", 403), K.BLOCKED),
    ("bedrock", aws("UnrecognizedClientException", "The security token included in the request is invalid.", 403), K.UNAUTHORISED),
    ("bedrock", aws("ExpiredTokenException", "The security token included in the request is expired", 403), K.UNAUTHORISED),
    ("bedrock", aws("InvalidSignatureException", "Signature expired: 20261122T000000Z is now earlier", 403), K.UNAUTHORISED),
    ("bedrock", aws("IncompleteSignature", "Authorization header requires 'Signature' parameter.", 400), K.UNAUTHORISED),
    ("bedrock", aws("ResourceNotFoundException", "Could not resolve the foundation model from the identifier", 404), K.BLOCKED),
    ("bedrock", aws("ValidationException", "The provided model identifier is invalid.", 400), K.BLOCKED),
    ("bedrock", aws("ValidationException", "Invocation of model ID anthropic.x with on-demand throughput isn’t supported. Retry", 400), K.BLOCKED),
    ("bedrock", aws("ValidationException", "Input is too long for requested model.", 400), K.TOO_LARGE),
    ("bedrock", aws("ValidationException", "messages.0.content: the provided model identifier is invalid", 400), K.REJECTED),
    ("bedrock", aws("ValidationException", "Malformed input request: #: operation not allowed, please reformat your input", 400), K.REJECTED),
    ("bedrock", aws("ModelErrorException", "The request failed due to an error while processing the model.", 424), K.TRANSIENT),
    ("bedrock", aws("ModelTimeoutException", "The request took too long to process.", 408), K.TRANSIENT),
    ("bedrock", aws("InternalServerException", "An internal server error occurred.", 500), K.TRANSIENT),
    ("bedrock", aws("ServiceUnavailableException", "The service isn't currently available.", 503), K.OVERLOADED),
    ("bedrock", http({"__type": "com.amazon.coral.service#ThrottlingException", "Message": "slow"}, 400), K.THROTTLED),
    ("bedrock", own("invalid_request_error", "max_tokens: must be above 0", 400), K.REJECTED),
    ("vertex", google("RESOURCE_EXHAUSTED", "Quota exceeded for aiplatform.googleapis.com/online_prediction_requests_per_base_model", 429), K.THROTTLED),
    ("vertex", google("RESOURCE_EXHAUSTED", "Resource exhausted", 429, listed=True), K.THROTTLED),
    ("vertex", google("UNAUTHENTICATED", "Request had invalid authentication credentials.", 401), K.UNAUTHORISED),
    ("vertex", google("PERMISSION_DENIED", "Permission 'aiplatform.endpoints.predict' denied on resource", 403), K.UNAUTHORISED),
    ("vertex", google("PERMISSION_DENIED", "This API method requires billing to be enabled.", 403), K.BLOCKED),
    ("vertex", google("NOT_FOUND", "Publisher Model `projects/p/locations/x/publishers/anthropic/models/claude-x` was not found", 404), K.BLOCKED),
    ("vertex", google("FAILED_PRECONDITION", "Project `1` is not allowed to use Publisher Model `claude`", 400), K.BLOCKED),
    ("vertex", google("INVALID_ARGUMENT", "Request contains an invalid argument.", 400), K.REJECTED),
    ("vertex", google("UNAVAILABLE", "The service is currently unavailable.", 503), K.OVERLOADED),
    ("vertex", google("DEADLINE_EXCEEDED", "Deadline expired", 504), K.TRANSIENT),
    ("vertex", google("CANCELLED", "The operation was cancelled.", 499), K.TRANSIENT),
    ("vertex", google("INTERNAL", "Internal error encountered.", 500), K.TRANSIENT),
    ("vertex", own("invalid_request_error", "prompt is too long: 210043 tokens > 200000 maximum", 400), K.TOO_LARGE),
    ("vertex", own("overloaded_error", "Overloaded", 529), K.OVERLOADED),
    ("foundry", azure("401", "Access denied due to invalid subscription key or wrong API endpoint.", 401), K.UNAUTHORISED),
    ("foundry", azure("PermissionDenied", "The principal lacks the required data action", 403), K.UNAUTHORISED),
    ("foundry", azure("429", "Requests have exceeded the rate limit. Please retry after 10 seconds.", 429, retry_after="10"), K.THROTTLED),
    ("foundry", azure("RateLimitReached", "Your requests have exceeded token rate limit", 429), K.THROTTLED),
    ("foundry", azure("DeploymentNotFound", "The API deployment for this resource does not exist.", 404), K.BLOCKED),
    ("foundry", azure("unknown_model", "Unknown model: claude-nine", 400), K.BLOCKED),
    ("foundry", azure("content_filter", "The response was filtered", 400), K.REJECTED),
    ("foundry", own("authentication_error", "invalid x-api-key", 401), K.UNAUTHORISED),
    ("foundry", own("overloaded_error", "Overloaded", 529), K.OVERLOADED),
]  # fmt: skip


@pytest.mark.parametrize("cloud", MADE)
async def test_each_refusal_of_a_cloud_is_of_the_kind_that_it_means(cloud: str, tmp_path, monkeypatch) -> None:
    table = [(answer, kind) for of, answer, kind in FAILURES if of == cloud]
    answers = iter(answer for answer, _ in table)
    async with connected(cloud, lambda _: next(answers), tmp_path, monkeypatch) as (_, model):
        found = [await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S) for _ in table]
    assert all(isinstance(failure, Failure) for failure in found)
    entries = [(failure.kind, failure.message) for failure in found if isinstance(failure, Failure)]
    assert [kind for kind, _ in entries] == [kind for _, kind in table], entries
    assert all(
        failure.sent and failure.message and "{" not in failure.message
        for failure in found
        if isinstance(failure, Failure)
    )
    if cloud == "foundry":
        assert [failure.retry_after_s for failure in found if isinstance(failure, Failure)].count(10.0) == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (("throttlingException", "Too many requests"), K.THROTTLED),
        (("modelStreamErrorException", "the model broke off"), K.TRANSIENT),
        (("internalServerException", "oh"), K.TRANSIENT),
        (("serviceUnavailableException", "busy"), K.OVERLOADED),
        (("validationException", "The provided model identifier is invalid."), K.BLOCKED),
    ],
)
async def test_an_exception_inside_bedrocks_stream_is_no_reply(error, kind, tmp_path, monkeypatch) -> None:
    parts = http(cloud_server.framed(EVENTS[:3], error), content_type="application/vnd.amazon.eventstream")
    async with connected("bedrock", lambda _: parts, tmp_path, monkeypatch, stream_above_tokens=8) as (_, model):
        found = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
    assert isinstance(found, Failure)
    assert (found.kind, found.message) == (kind, error[1])


async def test_a_stream_of_bedrocks_that_is_cut_or_damaged_is_no_reply(tmp_path, monkeypatch) -> None:
    whole = cloud_server.framed(EVENTS)
    cut = cloud_server.framed(EVENTS[:-2])[:-20]
    for data, kind in ((cut, K.UNREADABLE), (whole[:-2] + b"xx", K.TRANSIENT)):
        answer = http(data, content_type="application/vnd.amazon.eventstream")
        async with connected("bedrock", lambda _, it=answer: it, tmp_path, monkeypatch, stream_above_tokens=8) as (
            _,
            model,
        ):
            found = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
        assert isinstance(found, Failure) and found.kind is kind, found


async def test_without_credentials_nothing_is_sent_and_it_is_said_what_to_do(tmp_path, monkeypatch) -> None:
    for name in ("HOME", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "BOTO_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    nobody = Credential(platform=cloud_server.bedrock().platform)
    nobody = Credential(platform=type(nobody.platform)(name="bedrock", region="x-1"))  # type: ignore[misc,arg-type]
    async with scripted(lambda _: http(MESSAGE)) as server:
        model = AnthropicModel(nobody, base_url=server.url)
        found = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
        await model.close()
        assert not server.asked
    assert isinstance(found, Failure)
    assert (found.kind, found.sent) == (K.UNAUTHORISED, False)
    assert "AWS_ACCESS_KEY_ID" in found.message and "\n" not in found.message
    async with connected("vertex", lambda _: http(MESSAGE), tmp_path, monkeypatch) as (server, model):
        file = tmp_path / "service-account.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"token_uri": f"{server.url}/nothing"}))
        server.script = lambda _: http({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}, 400)
        found = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
    assert isinstance(found, Failure)
    assert (found.kind, found.sent) == (K.UNAUTHORISED, False)
    assert "gcloud auth" in found.message and "invalid_grant" in found.message


def test_every_exception_that_bedrock_declares_is_known() -> None:
    from botocore.loaders import Loader

    declared = Loader().load_service_model("bedrock-runtime", "service-2")
    for name in ("InvokeModel", "InvokeModelWithResponseStream"):
        for error in declared["operations"][name]["errors"]:
            assert ERRORS.meaning(error["shape"]), error


@pytest.mark.parametrize(("cloud", "package"), [("bedrock", "botocore.auth"), ("vertex", "google.auth")])
async def test_a_package_that_is_missing_where_calls_are_made_blocks_the_job(
    cloud, package, tmp_path, monkeypatch
) -> None:
    async with connected(cloud, lambda _: http(MESSAGE), tmp_path, monkeypatch) as (server, model):
        monkeypatch.setitem(sys.modules, package, None)
        found = await model.call(BODY, output_tokens_max=16, timeout_s=PATIENCE_S)
        assert not server.asked
    assert isinstance(found, Failure)
    assert (found.kind, found.sent) == (K.BLOCKED, False)
    assert found.message.startswith("a package is not installed where calls are made") and "\n" not in found.message
