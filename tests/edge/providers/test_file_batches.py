"""Batches of uploaded files over real HTTP, at each provider that has them: made, listed, read, cancelled, cleared away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from actors.channel.batches.orders import passes
from actors.ports.message_batches import THE_REST, UNKNOWN_REQUESTS, BatchRequest, BatchStatus, surely_not_made
from actors.providers.batches import file_batches
from actors.providers.batches.file_batches import FOREIGN
from actors.providers.credentials.account import ClientSpec, ProviderLocation, opened
from actors.providers.pricing import known
from actors.providers.registry import load, row_of
from actors.simulator.frontends.http_app import SimulatorServer, serve
from actors.simulator.settings import SimulatorSettings
from cortex.values.chat_form.completion import completion_of
from cortex.values.chat_form.request import chat_request
from cortex.values.reply import Reply
from policies.estimates.batching import NOT_BEGUN, QUEUE_FULL
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, http
from tests.support.patience import PATIENCE_S

K = FailureKind
KEY = "sk-made-up-0123456789"
SOON = SimulatorSettings(error=0.0, batch_ms=5)
BELOW = {"gemini": "/v1beta/openai"}
"""Path of the address of chat completions."""
KEYS = {"openai": "OPENAI_API_KEY", "openai-responses": "OPENAI_API_KEY", "mistral": "MISTRAL_API_KEY",
        "gemini": "GEMINI_API_KEY", "azure": "AZURE_OPENAI_API_KEY"}  # fmt: skip
EACH = pytest.mark.parametrize("provider", [each for each in KEYS if each != "azure"])
QUOTA = {"error": {"code": 429, "message": "You exceeded your current quota", "status": "RESOURCE_EXHAUSTED"}}


def body(text: str, **fields: Any) -> bytes:
    return msgspec.json.encode({"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": text}]} | fields)


def rows(count: int) -> list[BatchRequest]:
    return [BatchRequest(f"r{i}", body(f"Say a{i}")) for i in range(count)]


def client(provider: str, url: str) -> Any:
    account = opened(ProviderLocation(provider=provider, base_url=url + BELOW.get(provider, "")), {KEYS[provider]: KEY})
    made = load(row_of(provider).client)
    return made(ClientSpec(endpoint=account.endpoint, provider=provider, credential=account.credential))


@asynccontextmanager
async def simulated(provider: str, settings: SimulatorSettings = SOON) -> AsyncIterator[tuple[Any, SimulatorServer]]:
    server = await serve(settings)
    model = client(provider, server.url)
    try:
        yield model.batches, server
    finally:
        await model.close()
        await server.close()


def files(server: SimulatorServer) -> list[str]:
    return server._face.chat.batches.store.files


async def ended(batches: Any, name: str) -> BatchStatus:
    while True:
        found = await batches.look(name)
        assert isinstance(found, BatchStatus), found
        if found.ended:
            return found
        await asyncio.sleep(0.005)


async def results(batches: Any, name: str) -> dict[str, Reply | Failure]:
    return {custom_id: outcome async for custom_id, outcome in batches.results(name)}


@EACH
async def test_a_batch_from_its_making_to_the_end_of_its_files(provider: str) -> None:
    async with simulated(provider) as (batches, server):
        odd = BatchRequest("odd", body("x", container="c"))
        name = await batches.submit([*rows(5), odd], PATIENCE_S)
        assert isinstance(name, str), name
        assert (await batches.listed("", 0.0, 9))[0].first_id == "r0"
        status = await ended(batches, name)
        assert (status.name, status.requests, status.first_id) == (name, 6, "r0")
        found = await results(batches, name)
        assert {key: reply.text for key, reply in found.items() if isinstance(reply, Reply)} == {f"r{i}": f"a{i}" for i in range(5)}
        refused = found["odd"]
        assert isinstance(refused, Failure) and refused.kind is FailureKind.REJECTED and not refused.may_be_billed
        assert refused.message.startswith("container: "), "our own reason, since the provider saw an empty request"
        assert files(server), "until the results are safe"
        assert await batches.discard(name) is None
        assert files(server) == []
        assert await batches.discard(name) is None, "what is gone is no failure"


@EACH
async def test_the_list_goes_back_to_the_one_that_is_known(provider: str) -> None:
    async with simulated(provider) as (batches, _):
        names = [await batches.submit(rows(1 + at), PATIENCE_S) for at in range(3)]
        assert [each.name for each in await batches.listed(names[0], 0.0, 9)] == [names[2], names[1]]
        assert [each.name for each in await batches.listed("", 0.0, 1)] == [names[2]]
        assert await batches.listed("", 4e9, 9) == []


@pytest.mark.parametrize("provider", ["mistral", "gemini"])
async def test_a_request_in_the_form_of_chat_is_asked_too(provider: str) -> None:
    chat = chat_request({"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "Say a"}]})
    async with simulated(provider) as (batches, _):
        name = await batches.submit([BatchRequest("a", chat)], PATIENCE_S)
        await ended(batches, name)
        reply = (await results(batches, name))["a"]
    assert isinstance(reply, Reply) and b'"content":"a"' in completion_of(reply.body, 0.0)[0]


@pytest.mark.parametrize(("provider", "custom_id"), [("openai", "r0"), ("mistral", THE_REST), ("gemini", THE_REST)])
@pytest.mark.parametrize("expires", [True, False])
async def test_what_was_not_worked_off_is_told_and_not_billed(provider: str, custom_id: str, expires: bool) -> None:
    """Mistral leaves out what it did not come to, and Gemini all results: then one outcome stands for the rest."""
    settings = SimulatorSettings(error=0.0, batch_ms=5, batch_expired=1.0) if expires else SimulatorSettings(batch_ms=60_000)
    async with simulated(provider, settings) as (batches, _):
        name = await batches.submit(rows(1), PATIENCE_S)
        if not expires:
            assert await batches.cancel(name) is None
        await ended(batches, name)
        found = await results(batches, name)
    kind = FailureKind.EXPIRED if expires else FailureKind.CANCELLED
    assert {key: (each.kind, each.may_be_billed) for key, each in found.items()} == {custom_id: (kind, False)}


@pytest.mark.parametrize("provider", ["mistral", "gemini"])
async def test_a_full_queue_is_told_when_the_batch_is_made_and_its_file_goes(provider: str) -> None:
    async with simulated(provider, SimulatorSettings(error=0.0, batch_ms=60_000, batch_queue=4)) as (batches, server):
        first = await batches.submit(rows(3), PATIENCE_S)
        found = await batches.submit(rows(3), PATIENCE_S)
        assert isinstance(first, str) and len(files(server)) == 1
    assert isinstance(found, Failure) and surely_not_made(found)
    assert (found.kind, found.error_type, found.sent) == (FailureKind.THROTTLED, QUEUE_FULL, False)


@pytest.mark.parametrize(
    ("provider", "answer", "sure"),
    [
        ("mistral", http({"message": "no", "type": "invalid"}, 422), True),
        ("mistral", http({"message": "no"}, 500), False),
        ("mistral", http({"odd": 1}), False),
        ("gemini", http({"error": {"code": 400, "message": "no", "status": "INVALID_ARGUMENT"}}, 400), True),
        ("gemini", http({"error": {"code": 500, "message": "no", "status": "INTERNAL"}}, 500), False),
        ("gemini", http({"name": "../x"}), False),
    ],
)
async def test_whether_a_failed_submission_may_have_made_a_batch(provider: str, answer: Answer, sure: bool) -> None:
    def script(asked: Asked) -> Answer:
        made = asked.target == "/v1/batch/jobs" or asked.target.endswith(":batchGenerateContent")
        return answer if made else http({"id": "f1", "file": {"name": "files/f1"}}, X_Goog_Upload_URL="http://x/up")

    with served(script) as server:
        model = client(provider, server.url)
        found = await model.batches.submit(rows(1), PATIENCE_S)
        await model.close()
    assert isinstance(found, Failure) and surely_not_made(found) is sure
    deleted = [each.target for each in server.asked if each.method == "DELETE"]
    assert bool(deleted) is sure, "a file that no batch was made of is deleted"


PENDING = (
    "The input file 'f1' is in 'pending' state. Only files with status 'Processed' are accepted for batch inferencing. "
    "Please check the file status and try again"
)
"""Azure's refusal: https://learn.microsoft.com/answers/questions/2203029"""
WORK: list[tuple[str, str, list[Any], list[str]]] = [
    ("azure", "pending", ["pending", "running", "processed"], ["GET", "GET", "GET", "POST"]),  # openai/openai-dotnet#312
    ("azure", "pending", ["error"], ["GET", "POST"]),  # what is wrong with the file is said when the batch is made
    ("azure", "pending", [404], ["GET", "POST"]),
    ("azure", "pending", [503], ["GET", "POST"]),
    ("azure", "processed", [], ["POST"]),
    ("azure", "", ["processed"], ["POST", "GET", "POST"]),  # the upload says nothing, and the batch is refused
    ("azure", "processed", ["processed", "processed"], ["POST", "GET", "POST", "GET", "POST"]),  # its parts differ for a while
    ("openai", "processed", [], ["POST"]),
    ("openai", "uploaded", [], ["POST"]),  # deprecated: `FileObject.status` of the package `openai` 3.57
    ("openai-responses", "", [], ["POST"]),
    ("mistral", "", [], ["POST"]),
    ("gemini", "ACTIVE", [], ["POST"]),  # https://ai.google.dev/api/files#State
    ("gemini", "PROCESSING", ["PROCESSING", "ACTIVE"], ["GET", "GET", "POST"]),
]  # fmt: skip
"""Provider, status of the uploaded file, what looks at it find, and the requests after the upload."""


class Filing:
    """Server of files and batches, which makes no batch before the looks at the file are used up."""

    def __init__(self, provider: str, status: str, looks: list[Any]) -> None:
        self.provider, self.status, self.looks = provider, status, list(looks)

    def __call__(self, asked: Asked) -> Answer:
        path = asked.target.partition("?")[0]
        if asked.method == "DELETE":
            return http({"deleted": True})
        if asked.method == "GET":
            found = self.looks.pop(0)
            return http({"error": {"message": "no"}}, found) if isinstance(found, int) else http(self.file(found))
        if path.endswith("/files"):
            made = self.file(self.status)
            return http({"file": made} if "gemini" in self.provider else made, X_Goog_Upload_URL="http://x/v1beta/files")
        if self.looks:
            return http({"error": {"code": "invalid_request", "message": PENDING}}, 400)
        return http({"name": "batches/b1", "id": "b1"})

    def file(self, status: str) -> dict[str, Any]:
        about = {"name": "files/f1", "state": status} if self.provider == "gemini" else {"id": "f1", "status": status}
        return {key: value for key, value in about.items() if value}


@pytest.mark.parametrize(("provider", "status", "looks", "requests"), WORK)
async def test_a_batch_is_made_once_the_provider_has_worked_on_its_file(
    provider: str, status: str, looks: list[Any], requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_batches, "LOOK_S", 0.0)
    with served(Filing(provider, status, looks)) as server:
        model = client(provider, server.url)
        assert await model.batches.submit(rows(1), 60.0) == "b1"
        await model.close()
    uploads = 2 if provider == "gemini" else 1
    assert [each.method for each in server.asked[uploads:]] == requests
    looked = {each.target for each in server.asked if each.method == "GET"}
    assert looked <= {"/v1/files/f1", "/openai/v1/files/f1", "/v1beta/files/f1"}


@pytest.mark.parametrize("status", ["pending", ""])
async def test_a_file_that_is_not_ready_in_time_is_waited_for_when_its_rows_are_submitted_again(
    status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_batches, "LOOK_S", 3_600.0)  # the first look of a submission would be after its time
    filing = Filing("azure", status, ["pending", "running", "processed"])
    with served(filing) as server:
        model = client("azure", server.url)
        for _ in range(2):
            found = await model.batches.submit(rows(1), PATIENCE_S)
            assert isinstance(found, Failure) and surely_not_made(found) and passes(found)
            assert (found.kind, found.sent, found.may_be_billed) == (K.THROTTLED, False, False)
            assert "still works on the file" in found.message
        filing.looks[:1] = []
        assert await model.batches.submit(rows(1), PATIENCE_S) == "b1"
        await model.close()
    uploads = [each for each in server.asked if each.method == "POST" and each.target.endswith("/files")]
    assert len(uploads) == 1 and "DELETE" not in [each.method for each in server.asked]


async def test_a_file_that_is_gone_when_its_rows_are_submitted_again_is_uploaded_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_batches, "LOOK_S", 3_600.0)
    filing = Filing("azure", "pending", [404])
    with served(filing) as server:
        model = client("azure", server.url)
        assert isinstance(await model.batches.submit(rows(1), PATIENCE_S), Failure)
        filing.status = "processed"
        assert await model.batches.submit(rows(1), PATIENCE_S) == "b1"
        await model.close()
    assert [each.method for each in server.asked] == ["POST", "GET", "POST", "POST"]


async def test_files_that_nobody_waits_for_any_more_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_batches, "UNREADY_MAX", 2)
    monkeypatch.setattr(file_batches, "LOOK_S", 3_600.0)
    with served(Filing("azure", "pending", [])) as server:
        model = client("azure", server.url)
        for count in range(1, 5):
            assert isinstance(await model.batches.submit(rows(count), PATIENCE_S), Failure)
        assert [each.method for each in server.asked].count("DELETE") == 2
        await model.close()
        assert [each.method for each in server.asked].count("DELETE") == 4


async def test_the_upload_of_gemini_stays_at_its_address_and_its_key_in_its_header() -> None:
    def script(asked: Asked) -> Answer:
        if asked.target == "/upload/v1beta/files":
            return http({}, X_Goog_Upload_URL="http://elsewhere.example/upload/v1beta/files?upload_id=7")
        return http({"file": {"name": "files/f1"}} if "upload_id" in asked.target else {"name": "batches/b1", "metadata": {}})

    with served(script) as server:
        model = client("gemini", server.url)
        assert await model.batches.submit(rows(2), PATIENCE_S) == "b1"
        await model.close()
    begun, sent, made = server.asked
    assert begun.headers["x-goog-upload-command"] == "start" and sent.target == "/upload/v1beta/files?upload_id=7"
    assert [msgspec.json.decode(line)["key"] for line in sent.body.splitlines()] == ["r0", "r1"]
    assert made.target == "/v1beta/models/m:batchGenerateContent"
    assert made.json == {"batch": {"display_name": "cortex r0", "input_config": {"file_name": "files/f1"}}}
    assert {each.headers["x-goog-api-key"] for each in server.asked} == {KEY}
    assert not any("authorization" in each.headers for each in server.asked)


async def test_a_job_of_mistral_names_the_model_of_its_requests() -> None:
    with served(lambda asked: http({"id": "f1" if asked.target == "/v1/files" else "j1"})) as server:
        model = client("mistral", server.url)
        assert await model.batches.submit(rows(2), PATIENCE_S) == "j1"
        await model.close()
    assert server.asked[1].json == {
        "input_files": ["f1"], "endpoint": "/v1/chat/completions", "model": "m", "metadata": {"cortex": "r0"},
        "timeout_hours": 24,
    }  # fmt: skip


def job(status: str, **facts: Any) -> dict[str, Any]:
    return {"id": "b1", "created_at": 5, "status": status, "total_requests": 3} | facts


def operation(state: str, error: dict[str, Any] | None = None, **facts: Any) -> dict[str, Any]:
    about = {"state": f"BATCH_STATE_{state}", "createTime": "1970-01-01T00:00:05Z", "batchStats": {"requestCount": "3"}}
    return {"name": "batches/b1", "metadata": about | facts} | ({"error": error} if error else {})


STATES: list[tuple[str, dict[str, Any], Any]] = [
    ("mistral", job("QUEUED", total_requests=0), BatchStatus("b1", False, UNKNOWN_REQUESTS, 5.0, FOREIGN)),
    ("mistral", job("RUNNING", metadata={"cortex": "r0"}), BatchStatus("b1", False, 3, 5.0, "r0")),
    ("mistral", job("A_NEW_WORD"), BatchStatus("b1", True, 3, 5.0, FOREIGN)),
    ("mistral", job("FAILED", completed_requests=1, output_file="o"), BatchStatus("b1", True, 3, 5.0, FOREIGN)),
    ("mistral", job("FAILED", errors=[{"message": "bad file"}]), (FailureKind.REJECTED, NOT_BEGUN)),
    ("gemini", operation("RUNNING", displayName="cortex r0"), BatchStatus("b1", False, 3, 5.0, "r0")),
    ("gemini", operation("SUCCEEDED", displayName="mine"), BatchStatus("b1", True, 3, 5.0, FOREIGN)),
    ("gemini", operation("FAILED", {"code": 3, "message": "bad file"}), (FailureKind.REJECTED, NOT_BEGUN)),
    ("gemini", operation("FAILED", {"code": 8, "message": "quota"}), (FailureKind.THROTTLED, QUEUE_FULL)),
]  # fmt: skip


@pytest.mark.parametrize(("provider", "told", "meant"), STATES)
async def test_what_a_provider_says_of_a_batch(provider: str, told: dict[str, Any], meant: Any) -> None:
    with served(lambda _: http(told)) as server:
        model = client(provider, server.url)
        found = await model.batches.look("b1")
        await model.close()
    assert (found if isinstance(found, BatchStatus) else (found.kind, found.error_type)) == meant
    assert isinstance(found, BatchStatus) or not found.sent


async def test_a_batch_of_gemini_that_expired_after_answers_says_nothing_of_the_rest() -> None:
    """What was answered may be billed, though the expired batch has no results: each request counts as one without a line."""
    told = operation("EXPIRED", batchStats={"requestCount": "3", "successfulRequestCount": "1"})
    with served(lambda _: http(told)) as server:
        model = client("gemini", server.url)
        assert await results(model.batches, "b1") == {}
        await model.close()


def text(content: bytes) -> Answer:
    return [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(content) + content]


COMPLETION = b'{"id":"x","choices":[{"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}]}'
GENERATED = b'{"candidates":[{"content":{"parts":[{"text":"yes"}]},"finishReason":"STOP"}]}'
PARTS = {
    "mistral": (b'{"custom_id":"c%s","response":{"status_code":200,"body":', COMPLETION, b"}}"),
    "gemini": (b'{"key":"%s","response":', GENERATED, b"}"),
}
"""Beginning of a line of results, with the place of its request, an answer, and the end."""
GONE: list[tuple[str, Any, bool]] = [
    ("whole", lambda head, answer, tail: head + answer + tail, True),
    ("after a byte order mark", lambda head, answer, tail: b"\xef\xbb\xbf" + head + answer + tail, True),
    ("with a text that is no UTF-8", lambda head, answer, tail: head + answer.replace(b"yes", b"yes\xff") + tail, True),
    ("without its end", lambda head, answer, tail: head + answer, True),
    ("of another form", lambda head, answer, tail: head.replace(b'"response":{', b'"response":[{') + answer + tail, True),
    ("with a comma too few", lambda head, answer, tail: head.replace(b",", b" ") + answer + tail, True),
    ("of no JSON", lambda head, answer, tail: b"upstream timed out", False),
    ("that names two requests", lambda head, answer, tail: head + head.replace(b"r1", b"r7") + answer + tail, False),
]
"""Lines of a result that was paid for, and whether the line tells whose it is."""


@pytest.mark.parametrize("provider", PARTS)
@pytest.mark.parametrize(("what", "spoiled", "known"), GONE)
async def test_a_line_that_cannot_be_read_is_never_told_as_unpaid(provider: str, what: str, spoiled: Any, known: bool) -> None:
    """A batch expired after two answers of three, and one of its lines is spoiled."""
    head, answer, tail = PARTS[provider]
    lines = [head % b"r0" + answer + tail, spoiled(head % b"r1", answer, tail)]
    about = job("TIMEOUT_EXCEEDED", output_file="out") if provider == "mistral" else operation(
        "EXPIRED", output={"responsesFile": "files/out"}, batchStats={"requestCount": "3", "successfulRequestCount": "2"}
    )

    def script(asked: Asked) -> Answer:
        if "out" not in asked.target:
            return http(about)
        return text(b"\n".join([lines[1], lines[0], b""]))

    with served(script) as server:
        model = client(provider, server.url)
        found = await results(model.batches, "b1")
        await model.close()
    assert isinstance(found["r0"], Reply), "a line beside it is read"
    if known:
        told = found["r1"]
        assert isinstance(told, Reply) or (told.kind, told.may_be_billed, told.answer_came) == (K.UNREADABLE, True, True)
        assert isinstance(told, Reply) or "yes" in told.message, "what can be shown of it is kept"
        assert found[THE_REST].kind is K.EXPIRED and not found[THE_REST].may_be_billed
    else:
        assert found.keys() == {"r0"}, "the rest may hold it: each counts as a request without a line, which may be paid"


@pytest.mark.parametrize("provider", PARTS)
@pytest.mark.parametrize("whole", [True, False])
async def test_results_that_are_cut_in_their_last_line_are_read_again(provider: str, whole: bool) -> None:
    """Nothing is told of the rest, nor of the cut line, so that the results have fewer lines than the batch requests."""
    head, answer, tail = PARTS[provider]
    about = job("TIMEOUT_EXCEEDED", output_file="out") if provider == "mistral" else operation(
        "EXPIRED", output={"responsesFile": "files/out"}
    )
    second = head % b"r1" + answer + (tail if whole else b"")
    with served(lambda asked: text(head % b"r0" + answer + tail + b"\n" + second) if "out" in asked.target else http(about)) as server:
        model = client(provider, server.url)
        found = await results(model.batches, "b1")
        await model.close()
    assert found.keys() == ({"r0", "r1", THE_REST} if whole else {"r0"})


@EACH
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_batch_is_not_given_up_because_a_server_says_not_to_retry(provider: str, status: int) -> None:
    """The header is about a request that would be paid anew; a batch is paid, and to look again costs nothing."""
    told = http({"error": {"message": "later"}}, status, x_should_retry="false")
    with served(lambda _: told) as server:
        model = client(provider, server.url)
        looked = await model.batches.look("b1")
        read = await results(model.batches, "b1")
        await model.close()
    assert isinstance(looked, Failure) and passes(looked)
    assert isinstance(read[""], Failure) and passes(read[""])


async def test_files_that_cannot_be_deleted_are_told_and_the_others_go() -> None:
    def script(asked: Asked) -> Answer:
        if asked.method == "DELETE":
            return http({"error": {"message": "no"}}, 500) if asked.target.endswith("in") else http({"deleted": True})
        return http({"id": "b", "created_at": 5, "status": "completed", "input_file_id": "in", "output_file_id": "out"})

    with served(script) as server:
        model = client("openai", server.url)
        found = await model.batches.discard("b")
        await model.close()
    assert isinstance(found, Failure) and found.status == 500
    assert [each.target for each in server.asked if each.method == "DELETE"] == ["/v1/files/in", "/v1/files/out"]


@pytest.mark.parametrize(("provider", "model"), [("gemini", "gemini-2.5-flash"), ("mistral", "mistral-small-latest")])
def test_the_price_is_half(provider: str, model: str) -> None:
    plain, batch = known(model, provider=provider)[0], known(model, batch=True, provider=provider)[0]
    assert plain is not None and batch is not None
    assert batch.output_usd_per_mtok == plain.output_usd_per_mtok / 2
