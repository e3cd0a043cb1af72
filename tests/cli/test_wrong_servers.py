"""Wrong key, wrong model, a server that is no model server, a proxy's page: one clear line each, by each command that
calls a model, over each API. No row fails, nothing else is blamed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from actors.cli.jobs import rendering
from actors.doctor.checks import DoctorOptions
from actors.doctor.provider import connection_findings
from tests.cli.cli_runner import Done
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, http

KEY = "key-of-nobody-0123456789"
BLOCK_PAGE = b"<html><head><title>Denied</title></head><body><h1>Blocked by policy</h1>Ask the help desk.</body></html>"
SIGN_IN = b"<!DOCTYPE html><title>Sign in</title>"
PATHS = {"messages": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}
ROWS = {"messages": "anthropic", "chat": "openai", "responses": "openai-responses"}
PAGE_REMEDY = "see that --base-url and the key are right, and that no proxy is in the way (HTTPS_PROXY, NO_PROXY)"
NO_API = {
    "messages": "see that --base-url names a server of the Messages API, or give --api chat for chat completions",
    "chat": "see that --base-url names a server of OpenAI's chat completions, or leave out --api chat",
    "responses": "see that --base-url names a server of OpenAI's Responses API, or give --api chat for chat completions",
}


class Fault(NamedTuple):
    """Wrong server."""

    answer: Answer
    """Answer to every request but that for the list of models."""
    line: str
    """Cause and remedy, behind the kind of the failure; PATH, REMEDY: those of the API."""
    never: tuple[str, ...]
    """Words that would blame something else."""
    models: Answer
    """Answer to the request for the list of models."""
    doctor: str
    """Finding of the doctor, where it is not the line; empty: it cannot see the fault without a paid call."""


LISTED = http({"data": [{"id": "another", "type": "model"}]})
WRONG_KEY = http({"type": "error", "error": {"message": "Invalid key", "type": "authentication_error"}}, 401)
WRONG_MODEL = http({"error": {"message": "The model `nope` does not exist.", "type": "NotFoundError", "code": 404}}, 404)
NOTHING = http(b"404 page not found", 404, "text/plain")
PAGE = http(BLOCK_PAGE, 403, "text/html")
SIGN_IN_PAGE = http(SIGN_IN, 200, "text/html")
SET_KEY = "set the key of that server in CORTEX_SERVER_KEY or --api-key-file, or correct it where it is set"

FAULTS = {
    "key": Fault(WRONG_KEY, f"unauthorised: Invalid key; no row failed: {SET_KEY}", ("--base-url", "model"), WRONG_KEY, SET_KEY),
    "model": Fault(
        WRONG_MODEL, "blocked: The model `nope` does not exist: give a --model that is served there; no row failed",
        ("key", "credit", "--base-url"), LISTED, "nope",
    ),
    "nothing": Fault(
        NOTHING, "blocked: URLPATH answered 404 (404 page not found): REMEDY; no row failed", ("key", "credit", "--model"),
        NOTHING, "URLPATH answered 404 (404 page not found)",
    ),
    "page": Fault(
        PAGE, f"unauthorised: URLPATH answered 403 with a page: Blocked by policy Ask the help desk: {PAGE_REMEDY}; no row failed",
        ("credit", "--model", "CORTEX_SERVER_KEY"), PAGE, PAGE_REMEDY,
    ),
    "sign-in": Fault(
        SIGN_IN_PAGE, "blocked: URLPATH: the answer is of type text/html, not JSON: REMEDY; no row failed",
        ("key", "credit", "--model"), SIGN_IN_PAGE, "answers 200 with what is no JSON, such as a page",
    ),
}  # fmt: skip
COMMANDS: dict[str, tuple[object, ...]] = {
    "batch": ("batch", "in.csv", "--prompt", "{{text}}", "--id", "id", "-o", "out.csv", "--job", "j"),
    "run": ("run", "ask.py", "-p", 'texts=["a","b","c"]', "--job", "j"),
    "plan": ("plan", "in.csv", "--prompt", "{{text}}", "--sample", 3),
}
PROGRAM = """
import cortex


@cortex.flow
async def ask(ctx, texts: list[str]) -> list[str]:
    return await ctx.map(ctx.ask, texts)
"""


def script(fault: Fault) -> Callable[[Asked], Answer]:
    return lambda asked: fault.models if asked.method == "GET" else fault.answer


def filled(text: str, url: str, api: str) -> str:
    return text.replace("URLPATH", url + PATHS[api]).replace("REMEDY", NO_API[api])


def cases() -> Iterator[Any]:
    """Each fault by each API and command: batch over every API, and run and plan over one in turn; the rest is long."""
    for (at, fault), (turn, api), command in itertools.product(enumerate(FAULTS), enumerate(PATHS), COMMANDS):
        soon = command == "batch" or at % len(PATHS) == turn
        yield pytest.param(fault, api, command, marks=() if soon else pytest.mark.long)


@pytest.mark.parametrize(("fault", "api", "command"), list(cases()))
def test_a_command_says_one_clear_line(
    fault: str, api: str, command: str, cortex: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("in.csv").write_text("id,text\n" + "".join(f"r{at},ticket {at}\n" for at in range(3)))
    Path("ask.py").write_text(PROGRAM)
    monkeypatch.setenv("CORTEX_SERVER_KEY", KEY)
    wrong = FAULTS[fault]
    with served(script(wrong)) as server:
        done = cortex(*COMMANDS[command], "--base-url", server.url, "--model", "nope", "--api", api)
    said = [line.removeprefix("cortex: ") for line in done.err.splitlines()]
    lines = [line for line in said if line.startswith(("blocked: ", "unauthorised: "))]
    assert done.code == 3 and len(lines) == 1 and "Traceback" not in done.err, done.err
    assert lines[0].startswith(filled(wrong.line, server.url, api)), lines[0]
    assert not any(words in lines[0].partition("; no row failed for it")[0] for words in wrong.never), lines[0]
    assert rendering._RESUME in lines[0] and "larger" not in done.err and KEY not in done.err


@pytest.mark.parametrize(("fault", "api"), list(itertools.product(FAULTS, PATHS)))
def test_the_doctor_finds_the_same(fault: str, api: str) -> None:
    wrong = FAULTS[fault]
    with served(script(wrong)) as server:
        asked = DoctorOptions(
            environ={"CORTEX_SERVER_KEY": KEY}, base_url=server.url, model="nope", provider={"provider": ROWS[api]}
        )
        found = [each for each in connection_findings(asked) if each.state != "ok"]
    (finding,) = found
    assert filled(wrong.doctor, server.url, api) in f"{finding.message}: {finding.do}", finding
    assert ".:" not in f"{finding.message}: {finding.do}" and KEY not in f"{finding}"
