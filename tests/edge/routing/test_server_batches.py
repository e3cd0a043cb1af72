"""A plan lists `--via batches` for a server of the user's own only where that server has batches, or does not tell.

The answers are made by hand after the servers' sources.
"""

from __future__ import annotations

import socket

import pytest

from actors.planning.inputs import routes
from actors.routing import server_batches
from actors.routing.model_spec import ModelSpec, SetupError
from actors.routing.server_batches import batches_of, has_batches
from cortex.values.limits import Limits
from tests.edge.routing.test_api_detection import KEYS, Answer, error, serving
from tests.support.patience import PATIENCE_S

ANSWERS: dict[str, tuple[Answer, bool | None]] = {
    "Anthropic behind a gateway": ((200, {"data": [], "has_more": False, "first_id": None, "last_id": None}), True),
    "OpenAI behind a gateway": ((200, {"object": "list", "data": [], "has_more": False}), True),
    "vLLM": ((404, {"detail": "Not Found"}), False),
    "Ollama": ((404, "404 page not found"), False),
    "llama.cpp": ((404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}), False),
    "LM Studio": ((200, {"error": "Unexpected endpoint or method. (GET /v1/messages/batches)"}), False),
    "a site that answers all": ((200, "<html></html>"), False),
    "nothing there": ((501, ""), False),
    "a server that makes batches and lists none": ((405, {"detail": "Method Not Allowed"}), None),
    "a key that is refused": ((401, error("invalid x-api-key", "authentication_error")), None),
    "LiteLLM without files_settings": ((500, {"error": {"message": "files_settings is not set"}}), None),
    "a gateway of a server that is away": ((503, "no healthy upstream"), None),
}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes as long as a busy machine may has answered all the same."""
    monkeypatch.setattr(server_batches, "TIMEOUT_S", PATIENCE_S)


@pytest.mark.parametrize(
    ("provider", "path"), [("", "/v1/messages/batches"), ("openai", "/v1/batches"), ("openai-responses", "/v1/batches")]
)
@pytest.mark.parametrize(("answer", "has"), ANSWERS.values(), ids=ANSWERS)
async def test_a_server_is_asked_for_a_list_of_its_batches(answer: Answer, has: bool | None, provider: str, path: str) -> None:
    with serving({}, other=answer) as asked:
        spec = ModelSpec(model="m", base_url=asked.url, provider=provider)
        found = routes(spec, Limits(output_tokens_max=10), KEYS)
        route, notes = await batches_of(spec, found.batches, KEYS)
        assert asked.got == [(path, "Bearer sk-of-the-server")] and asked.paths == []
    assert (route is None) is (has is False)
    words = f"--via batches may not work: {asked.url} answers {answer[0]} at {path}, which does not tell whether it has batches"
    assert notes == ((words,) if has is None else ())


async def test_a_server_that_does_not_answer_tells_nothing_and_a_provider_is_not_asked() -> None:
    with socket.socket() as deaf:  # its port is nobody else's meanwhile
        deaf.bind(("127.0.0.1", 0))
        spec = ModelSpec(model="m", base_url=f"http://127.0.0.1:{deaf.getsockname()[1]}")
        route, notes = await batches_of(spec, routes(spec, Limits(output_tokens_max=10), KEYS).batches, KEYS)
    assert route is not None and "does not answer" in notes[0]
    spec = ModelSpec(model="claude-haiku-4-5")
    found = routes(spec, Limits(output_tokens_max=10), {}).batches
    assert await batches_of(spec, found, {}) == (found, ()) and found is not None


async def test_batches_that_are_asked_for_and_lacking_are_refused() -> None:
    with serving({}) as asked:
        spec = ModelSpec(model="m", base_url=asked.url, via="batches")
        with pytest.raises(SetupError, match="takes no message batches; leave it out"):
            await batches_of(spec, routes(spec, Limits(output_tokens_max=10), KEYS).batches, KEYS)


@pytest.mark.parametrize("body", [b"", b"\xff", b"[" * 10_000, b'{"data": 1}', b"[]"])
def test_a_page_that_is_no_list_is_none(body: bytes) -> None:
    assert has_batches(200, body) is False
