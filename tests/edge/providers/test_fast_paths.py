"""The ordinary request and response of OpenAI's forms take few Python functions beyond those of the Messages API: the
rate of calls over either depends on it (`python -m benchmarks.http --roads inline,inline_chat,inline_responses`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import pytest

from actors.common.gc_tuning import unwatched
from actors.providers.chat_completions.client import CHAT_FORM
from actors.providers.chat_completions.request import ChatVariant
from actors.providers.client.wire_form import Variant, WireForm
from actors.providers.messages.client import MESSAGES_FORM
from actors.providers.responses.client import RESPONSES_FORM
from actors.providers.responses.request import ResponsesVariant
from benchmarks.harness import rows, server

FORMS = {
    "messages": (MESSAGES_FORM, None, 0, 3), "chat": (CHAT_FORM, ChatVariant(), 1, 4),
    "responses": (RESPONSES_FORM, ResponsesVariant(), 2, 4),
}  # fmt: skip
"""Form, spelling, number of the API at the benchmarks' server, and the most functions of a call."""


def functions(work: Callable[[], object]) -> list[str]:
    """Return the names of the Python functions that are called, without those that a search for garbage calls: others
    have registered some, and it comes whenever enough was made in this process."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    with unwatched():
        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(before)
    return called[1:]


@pytest.mark.parametrize(("form", "variant", "api", "most"), FORMS.values(), ids=FORMS)
def test_an_ordinary_call_takes_few_functions(form: WireForm, variant: Variant, api: int, most: int) -> None:
    request = msgspec.json.encode(rows.params(7))
    response = server.answer(7, api).partition(b"\r\n\r\n")[2]

    def call() -> None:
        form.body(request, False, variant)
        assert form.read(response, "").text == "row 000007"

    called = functions(call)
    called.remove("text")
    assert len(called) <= most, called


@pytest.mark.parametrize(("form", "variant"), [each[:2] for each in FORMS.values()][1:], ids=[*FORMS][1:])
def test_a_field_of_no_value_is_left_out(form: WireForm, variant: Variant) -> None:
    """The request was refused: the long way leaves the field out."""
    request = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
    bare, empty = (msgspec.json.encode(each) for each in (request, request | {"output_config": None}))
    assert form.body(empty, False, variant) == form.body(bare, False, variant)
