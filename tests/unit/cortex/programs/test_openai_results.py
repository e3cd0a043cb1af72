"""Result lines in the form of OpenAI's batch files."""

from __future__ import annotations

import json

import pytest

from actors.files.columns import flat
from cortex.programs.parts.openai_results import failed_line, succeeded_line
from cortex.values.reply import Usage, canonical_reply
from policies.failures.failure import RULES, Failure, FailureKind

REPLY = canonical_reply([{"type": "text", "text": "é"}], stop_reason="end_turn", model="m", usage=Usage(1, 2), name="msg_1")


def test_an_answered_row() -> None:
    line = succeeded_line("j", "a/é", REPLY.body, 5.0)
    found = json.loads(line)
    assert list(found) == ["id", "custom_id", "response", "error"]
    assert (found["custom_id"], found["error"]) == ("a/é", None)
    assert list(found["response"]) == ["status_code", "request_id", "body"]
    assert (found["response"]["status_code"], found["response"]["request_id"]) == (200, "msg_1")
    assert found["response"]["body"]["choices"][0]["message"]["content"] == "é"
    assert json.loads(flat(line)) == {"custom_id": "a/é", "answer": "é", "error": None}


def test_the_id_of_a_line_is_that_of_its_row_and_job() -> None:
    ids = {json.loads(succeeded_line(job, key, REPLY.body, 0.0))["id"] for job in "jk" for key in "abc"}
    assert len(ids) == 6 and all(each.startswith("batch_req_") for each in ids)
    assert json.loads(failed_line("j", "a", Failure(FailureKind.EXPIRED, "late")))["id"] in ids


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_row_that_failed(kind: FailureKind) -> None:
    found = json.loads(failed_line("j", "a", Failure(kind, "no")))
    codes = {FailureKind.EXPIRED: "batch_expired", FailureKind.CANCELLED: "batch_cancelled"}
    code = codes.get(kind) or RULES[kind].batch_error or "api_error"
    assert (found["response"], found["error"]) == (None, {"code": code, "message": "no"})


def test_a_row_that_the_server_refused_has_its_status_and_no_error_beside_it() -> None:
    line = failed_line("j", "a", Failure(FailureKind.REJECTED, "bad field", 400, "invalid_request_error"))
    found = json.loads(line)
    assert found["error"] is None and found["response"]["status_code"] == 400
    assert found["response"]["body"]["error"] == {
        "message": "bad field", "type": "invalid_request_error", "param": None, "code": None,
    }  # fmt: skip
    assert json.loads(flat(line)) == {"custom_id": "a", "answer": None, "error": "invalid_request_error: bad field"}
