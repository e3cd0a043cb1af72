"""``table`` and ``batch``: a reply that is no whole answer is none, and is counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cortex.journal import codec
from cortex.programs.table import Table
from cortex.state import events
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.reply import Reply, Usage
from policies.estimates.reply_bounds import LONGER_TIMES
from policies.failures.failure import Failure, FailureKind
from tests.unit.cortex.programs.test_table import SCHEMA, Played, row

TEXT = [{"type": "text", "text": "a half"}]
THOUGHT = [{"type": "thinking", "thinking": "hmm", "signature": "s"}]
ASKS = [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]
CASES: list[tuple[str, list[dict[str, Any]], str]] = [
    ("end_turn", TEXT, ""),
    ("", TEXT, ""),
    ("max_tokens", TEXT, "cut"),
    ("model_context_window_exceeded", TEXT, "cut"),
    ("max_tokens", THOUGHT, "cut"),
    ("max_tokens", [], "cut"),
    ("pause_turn", TEXT, "paused"),
    ("end_turn", THOUGHT, "empty"),
    ("end_turn", [], "empty"),
    ("tool_use", ASKS, "tool_use"),
    ("tool_use", TEXT + ASKS, "tool_use"),
    ("refusal", TEXT, "refused"),
    ("content_filter", [], "refused"),
]


def played(content: list[dict[str, Any]], stop_reason: str, **fields: Any) -> Played:
    job = Played(Table(prompt="{{text}}", id="id", **fields))
    job.feed(row(id="a", text="x"))
    said(job, content, stop_reason)
    return job


def said(job: Played, content: list[dict[str, Any]], stop_reason: str, to: Any = None) -> None:
    call = to or job.calls[-1]
    reply = Reply(msgspec.json.encode({"content": content}), stop_reason, "m-1", Usage(10, 3))
    job.take(events.Answered(call.goal, call.sample, call.attempt, call.hash, reply, 0.25))


@pytest.mark.parametrize(("stop_reason", "content", "kind"), CASES)
@pytest.mark.parametrize("on_cut", ["fail", "keep"])
def test_each_reply_is_an_answer_or_fails_its_row(stop_reason: str, content: Any, kind: str, on_cut: str) -> None:
    job = played(content, stop_reason, on_cut=on_cut)
    text = "".join(block.get("text", "") for block in content)
    kept = kind == "cut" and on_cut == "keep" and bool(text)
    found = job.rows[0]
    assert (found["answer"], (found["error"] or "").partition(":")[0]) == (text, "" if kept else kind)
    assert job.k.tally.failed_for_good == ({kind: 1} if kind and not kept else {})
    assert job.k.tally.endings == ({"cut": 1} if kept else {"unknown": 1} if not stop_reason else {})
    assert (len(job.calls), job.k.outcome) == (1, "complete")
    assert job.replayed() == codec.encode_state(job.k)


def test_longer_asks_with_twice_the_bound_up_to_a_limit_and_keeps_the_last_fragment() -> None:
    job = played(TEXT, "max_tokens", on_cut="longer", meta=True)
    for _ in range(3):
        said(job, TEXT, "max_tokens")
    assert [call.output_tokens_max for call in job.calls] == [1024, 2048, 4096, 1024 * LONGER_TIMES]
    found = job.rows[0]
    assert (found["answer"], found["kind"], found["attempts"], found["output_tokens"]) == ("a half", "cut", 4, 12)
    assert job.replayed() == codec.encode_state(job.k)


def test_longer_ends_with_the_first_whole_answer() -> None:
    job = played(THOUGHT, "max_tokens", on_cut="longer")
    said(job, TEXT, "end_turn")
    assert [each["answer"] for each in job.rows] == ["a half"]
    assert (job.rows[0]["error"], job.k.tally.endings, job.k.tally.failed) == (None, {}, 0)


@pytest.mark.parametrize("kind", [FailureKind.REJECTED, FailureKind.TOO_LARGE])
def test_a_longer_bound_that_the_provider_rejects_leaves_the_fragment_of_a_cut_row(kind: FailureKind) -> None:
    job = played(TEXT, "max_tokens", on_cut="longer", meta=True)
    call = job.calls[-1]
    failure = Failure(kind, "max_tokens: 2048 > 1024", status=400)
    job.take(events.AttemptFailed(call.goal, call.sample, call.attempt, failure))
    why = "cut: a larger max_tokens (2048) was refused: max_tokens: 2048 > 1024"
    assert (job.rows[0]["answer"], job.rows[0]["error"]) == ("a half", why)
    assert (job.k.tally.failed_for_good, job.k.outcome) == ({"cut": 1}, "complete")
    assert job.replayed() == codec.encode_state(job.k)


def test_raised_bounds_that_the_provider_rejects_alike_do_not_hold_the_job() -> None:
    """A blocked account rejects every call with the same words; here only the raised bounds are rejected."""
    job = Played(Table(prompt="{{text}}", id="id", on_cut="longer"), limits=Limits(rejected_alike_max=3))
    job.feed(*(row(id=str(each), text="x") for each in range(10)))
    for call in job.calls[:10]:
        said(job, TEXT, "max_tokens", call)
    for call in job.calls[10:]:
        failure = Failure(FailureKind.REJECTED, "max_tokens: 2048 > 1024", status=400)
        job.take(events.AttemptFailed(call.goal, call.sample, call.attempt, failure))
    assert (job.k.tally.failed_for_good, job.k.outcome, len(job.rows)) == ({"cut": 10}, "complete", 10)


@pytest.mark.parametrize(("known", "asked"), [
    (None, [1024, 2048, 4096, 8192]), (5_000, [1024, 2048, 4096, 5000]), (4_096, [1024, 2048, 4096]), (1_024, [1024]),
    (512, [1024]),
])  # fmt: skip
def test_longer_stays_within_the_maximum_of_the_model(known: int | None, asked: list[int]) -> None:
    job = Played(Table(prompt="{{text}}", id="id", on_cut="longer"), output_tokens_max=known)
    job.feed(row(id="a", text="x"))
    for _ in asked:
        said(job, TEXT, "max_tokens")
    assert ([call.output_tokens_max for call in job.calls], job.rows[0]["error"][:4]) == (asked, "cut:")


def test_longer_stays_within_the_smallest_maximum_of_the_fallbacks() -> None:
    routes = [Route(endpoint="e", model=name, output_tokens_max=most) for name, most in MAXIMA]
    terms = JobTerms(
        job="j", program="p", params_json=b"", fingerprint="f", route=routes[0], fallbacks=tuple(routes[1:])
    )
    assert terms.reply_tokens_max() == 4_096


MAXIMA = (("a", None), ("b", 8_192), ("c", 4_096))


def test_longer_sets_the_worst_case_of_the_raised_bound_aside() -> None:
    """The cap admits the first call and not the second: the row waits, and its fragment is not lost."""
    first = 1_100 * 1_000_000 + 1_024 * 2_000_000  # nano-USD: some 60 input tokens at most, and the reply
    job = Played(Table(prompt="{{text}}", id="id", on_cut="longer"), limits=Limits(max_cost_nusd=first))
    job.feed(row(id="a", text="x"))
    said(job, TEXT, "max_tokens")
    assert (len(job.calls), job.rows, job.k.outcome) == (1, [], "partial")
    job.take(events.LimitsSet("ann", Limits(max_cost_nusd=3 * first)), events.Resumed("ann"), events.PermitsGranted(10))
    assert [call.output_tokens_max for call in job.calls] == [1024, 2048]
    said(job, TEXT, "end_turn")
    assert (job.rows[0]["answer"], job.k.outcome) == ("a half", "complete")


def test_the_context_window_is_not_asked_for_more() -> None:
    assert len(played(TEXT, "model_context_window_exceeded", on_cut="longer").calls) == 1


@pytest.mark.parametrize(("text", "error"), [('{"n": 3', "cut"), ("", "cut"), ('{"n": 3}', "")])
def test_with_a_schema_a_cut_answer_is_cut_unless_nothing_of_it_is_missing(text: str, error: str) -> None:
    job = played([{"type": "text", "text": text}], "max_tokens", on_cut="keep", schema=SCHEMA)
    assert (job.rows[0]["error"] or "").partition(":")[0] == error
    assert (len(job.calls), job.rows[0]["n"]) == (1, None if error else 3)


def test_with_a_schema_a_cut_answer_is_asked_again_with_longer() -> None:
    half = [{"type": "text", "text": '{"n": 3'}]
    job = played(half, "max_tokens", on_cut="longer", schema=SCHEMA)
    said(job, [{"type": "text", "text": '{"n": 34}'}], "end_turn")
    assert [call.output_tokens_max for call in job.calls] == [1024, 2048]
    assert (job.rows[0]["n"], job.rows[0]["error"]) == (34, None)


@pytest.mark.parametrize("on_cut", ["fail", "keep"])
def test_the_answer_tool_that_is_cut_is_cut(on_cut: str) -> None:
    use = [{"type": "tool_use", "id": "u", "name": "answer", "input": {}}]
    job = played(use, "max_tokens", on_cut=on_cut, schema=SCHEMA, schema_as="tool")
    assert (job.rows[0]["n"], job.rows[0]["error"][:4], len(job.calls)) == (None, "cut:", 1)


def test_the_answer_tool_is_an_answer() -> None:
    use = [{"type": "tool_use", "id": "u", "name": "answer", "input": {"n": 4}}]
    job = played(use, "tool_use", on_cut="fail", schema=SCHEMA, schema_as="tool")
    assert (job.rows[0]["n"], job.rows[0]["error"], job.k.tally.endings) == (4, None, {})


def test_a_table_of_release_0_1_0_keeps_what_it_kept() -> None:
    job = played(TEXT, "max_tokens")
    assert (job.rows[0]["answer"], job.rows[0]["error"], job.k.tally.endings) == ("a half", None, {})


@pytest.mark.parametrize(("stop_reason", "content", "kind"), CASES)
def test_a_request_keeps_every_message_and_counts_those_that_are_no_whole_answer(
    stop_reason: str, content: Any, kind: str
) -> None:  # fmt: skip
    from cortex.programs.batch import Batch

    job = Played(Batch())  # type: ignore[arg-type]
    job.feed(events.Row("a", msgspec.json.encode({"model": "m", "max_tokens": 8, "messages": []}), 8))
    said(job, content, stop_reason)
    assert job.rows[0]["result"]["type"] == "succeeded"
    counted = "unknown" if not stop_reason else "" if kind == "tool_use" else kind
    assert job.k.tally.endings == ({counted: 1} if counted else {})
    assert job.replayed() == codec.encode_state(job.k)




def test_a_row_that_was_cut_is_asked_with_the_bound_of_the_job_once_that_is_larger() -> None:
    """A retry with a larger bound continues the rows that wait, too."""
    job = played(TEXT, "max_tokens", on_cut="longer")
    call = job.calls[-1]
    job.take(events.LimitsSet("ann", msgspec.structs.replace(job.k.terms.limits, output_tokens_max=9_000)))
    failure = Failure(FailureKind.LOST, "its branch died")
    job.take(events.AttemptFailed(call.goal, call.sample, call.attempt, failure))
    said(job, TEXT, "max_tokens")
    assert [call.output_tokens_max for call in job.calls] == [1024, 2048, 9_000, 18_000]
