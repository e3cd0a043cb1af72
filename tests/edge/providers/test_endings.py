"""Endings of replies over both transports: single calls and message batches fail and count the same rows alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import cortex
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.providers.credentials.credential import Credential
from actors.routing.model_factory import ConnectionSpec
from cortex.programs.batch import Batch
from cortex.programs.table import Table
from cortex.state.events import Row
from tests.edge.support.batch_job import Job
from tests.edge.support.scripted_http_server import MESSAGE, Asked, compact, http, scripted

TEXT = [{"type": "text", "text": "a half"}]
THOUGHT = [{"type": "thinking", "thinking": "hmm", "signature": "s"}]
HIDDEN = [{"type": "redacted_thinking", "data": "x"}]
ASKS = [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]
WANTS_MORE = ("max_tokens", THOUGHT, "cut")
"""Reply to the text ``thinker`` with up to 2,000 tokens; with more it is whole."""
REPLIES: dict[str, tuple[str | None, list[dict[str, Any]], str]] = {
    "whole": ("end_turn", TEXT, ""),
    "stopped": ("stop_sequence", TEXT, ""),
    "thoughtful": ("end_turn", THOUGHT + TEXT, ""),
    "foreign": ("eos", TEXT, "unknown"),
    "missing": (None, TEXT, "unknown"),
    "void": (None, [], "empty"),
    "cut": ("max_tokens", TEXT, "cut"),
    "window": ("model_context_window_exceeded", TEXT, "cut"),
    "thinking": ("max_tokens", THOUGHT, "cut"),
    "hidden": ("max_tokens", HIDDEN, "cut"),
    "nothing": ("max_tokens", [], "cut"),
    "paused": ("pause_turn", TEXT, "paused"),
    "mute": ("end_turn", THOUGHT, "empty"),
    "empty": ("end_turn", [], "empty"),
    "blank": ("end_turn", [{"type": "text", "text": " \n"}], "empty"),
    "tool": ("tool_use", ASKS, "tool_use"),
    "refused": ("refusal", TEXT, "refused"),
    "filtered": ("content_filter", [], "refused"),
}
"""Text of a row -> stop reason and content of the reply to it, and the ending; empty for a whole answer."""
FAILED = {"cut": 5, "empty": 4, "paused": 1, "refused": 2, "tool_use": 1}
VIA = pytest.mark.parametrize("via", ["messages", "batches"])


def message(request: dict[str, Any]) -> dict[str, Any]:
    if request["messages"][-1]["content"] == "thinker" and request["max_tokens"] > 2_000:
        return MESSAGE | {"content": THOUGHT + TEXT}
    stop_reason, content, _ = REPLIES.get(request["messages"][-1]["content"], WANTS_MORE)
    return MESSAGE | {"stop_reason": stop_reason, "content": content}


def provider() -> Any:
    """Script of a server of single calls and message batches; a batch has ended at once."""
    made: list[list[dict[str, Any]]] = []
    counts = {"processing": 0, "succeeded": len(REPLIES), "errored": 0, "canceled": 0, "expired": 0}
    status = {"created_at": "2026-01-01T00:00:00Z", "processing_status": "ended", "request_counts": counts}

    def answer(asked: Asked) -> Any:
        path = asked.target.partition("?")[0]
        if path.endswith("/messages"):
            return http(message(asked.json))
        if asked.method == "POST" and path.endswith("/batches"):
            made.append(asked.json["requests"])
            return http(status | {"id": f"msgbatch_{len(made)}"})
        if path.endswith("/results"):
            each = made[int(path.split("/")[-2].rpartition("_")[2]) - 1]
            lines = [
                {"custom_id": one["custom_id"], "result": {"type": "succeeded", "message": message(one["params"])}}
                for one in each
            ]
            return http(b"".join(compact(line) + b"\n" for line in lines), content_type="application/x-jsonl")
        if path.endswith("/batches"):
            return http({"data": [], "has_more": False})
        return http(status | {"id": path.removesuffix("/cancel").rpartition("/")[2]})

    return answer


async def run(tmp_path: Path, via: str, program: Any, rows: list[Row] | None) -> Job:
    async with scripted(provider()) as server:
        key = Credential(api_key="sk-test-0123456789", base_url=server.url)
        connection = ConnectionSpec(endpoint=server.url, credential=key)
        return await Job(tmp_path, connection, program=program, via=via, given=rows).to_end()


def table_rows() -> list[Row]:
    return [Row(name, msgspec.json.encode({"id": name, "text": name})) for name in REPLIES]


@VIA
@pytest.mark.parametrize("on_cut", ["fail", "keep"])
async def test_rows_of_a_table_have_the_same_kinds_by_either_transport(tmp_path: Path, via: str, on_cut: str) -> None:
    job = await run(tmp_path, via, Table(prompt="{{text}}", id="id", meta=True, on_cut=on_cut), table_rows())
    found = {row["id"]: row for row in map(msgspec.json.decode, job.sink.values)}
    kept = {"cut", "window"} if on_cut == "keep" else set()
    for name, (stop_reason, content, ending) in REPLIES.items():
        failed = ending not in ("", "unknown") and name not in kept
        text = "".join(block.get("text", "") for block in content)
        kind = ending if failed else "succeeded"
        error = (found[name]["error"] or "").partition(":")[0]
        assert (found[name]["kind"], error) == (kind, ending if failed else ""), name
        assert (found[name]["answer"], found[name]["stop_reason"]) == (text, stop_reason or ""), name
    failures = FAILED | {"cut": 3} if kept else FAILED
    assert job.facts["rows_failed_by_kind"] == failures
    assert job.facts["rows_by_ending"] == ({"cut": 2, "unknown": 2} if kept else {"unknown": 2})
    assert job.facts["paid_calls"] == len(REPLIES)


@VIA
async def test_longer_asks_the_rows_that_were_cut_again_by_either_transport(tmp_path: Path, via: str) -> None:
    rows = [Row(name, msgspec.json.encode({"id": name, "text": name})) for name in ("thinker", "whole", "window")]
    job = await run(tmp_path, via, Table(prompt="{{text}}", id="id", meta=True, on_cut="longer"), rows)
    found = {row["id"]: (row["kind"], row["attempts"]) for row in map(msgspec.json.decode, job.sink.values)}
    assert found == {"thinker": ("succeeded", 2), "whole": ("succeeded", 1), "window": ("cut", 1)}
    assert (job.facts["paid_calls"], job.facts["rows_failed_by_kind"]) == (4, {"cut": 1})


@VIA
async def test_requests_keep_every_message_and_count_those_that_are_no_whole_answer(tmp_path: Path, via: str) -> None:
    rows = [
        Row(name, msgspec.json.encode({"max_tokens": 8, "messages": [{"content": name, "role": "user"}], "model": "m"}), 8)
        for name in REPLIES
    ]
    job = await run(tmp_path, via, Batch(), rows)
    results = job.sink.results()
    for name, (stop_reason, content, _) in REPLIES.items():
        assert results[name]["type"] == "succeeded", name
        assert (results[name]["message"]["stop_reason"], results[name]["message"]["content"]) == (stop_reason, content)
    counted = {ending: count for ending, count in FAILED.items() if ending != "tool_use"}
    assert job.facts["rows_by_ending"] == counted | {"unknown": 2}  # a request offers its tools itself
    assert (job.facts["rows_succeeded"], job.facts["rows_failed_by_kind"]) == (len(REPLIES), {})


@cortex.flow
async def asks(ctx: cortex.Context, names: list[str]) -> list[str]:
    """Answer, or kind of failure, of each question."""
    found = await ctx.map(ctx.ask, names, on_failure="keep")
    return [f"kind {each.kind}" if isinstance(each, cortex.CallFailed) else each for each in found]


@VIA
async def test_a_flow_has_the_same_kinds_by_either_transport(tmp_path: Path, via: str) -> None:
    job = await run(tmp_path, via, asks(names=list(REPLIES)), None)
    expected = [
        f"kind {ending}" if ending not in ("", "unknown") else "a half" for _, _, ending in REPLIES.values()
    ]
    assert job.facts["outcome"] == "complete"
    assert last_state(StateFolder(str(tmp_path)), "j").goals[1].answer == expected
