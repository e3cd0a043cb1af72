"""Usage as real servers send it: absent, null, as text, as floats, negative, beyond 64 bits, as an object.

``tests/edge/providers/flawed_bodies.py`` names the reports. An answer with such usage is written here in the form of a
provider's API and read by that provider's client, so that K gets what it would get from a server. What a client has to
make of each form stands in ``FORMS`` and is not taken from the clients.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import msgspec

from actors.providers.chat_completions.response import read_completion
from actors.providers.messages.batch_results import read_result
from actors.providers.messages.response import read_message
from cortex.values.bounds.counts import COUNT_MAX
from cortex.values.reply import Reply, Usage

UNREADABLE: Final = Usage(unknown=True)
USAGE: Final = Usage(40, 2)
"""Usage of a reply, unless something else is said."""
FORMS: Final[tuple[tuple[str, Usage], ...]] = (
    ("", UNREADABLE),
    ("null", UNREADABLE),
    ("{}", UNREADABLE),
    ("[]", UNREADABLE),
    ('{"IN":null,"OUT":null}', UNREADABLE),
    ('{"IN":null,"OUT":2}', UNREADABLE),
    ('{"IN":40.0,"OUT":2.0}', USAGE),
    ('{"IN":"40","OUT":"2"}', USAGE),
    ('{"IN":40,"OUT":2,"OTHER":{"a":[{"b":1e308}]}}', USAGE),
    ('{"IN":40,"OUT":2.25}', UNREADABLE),
    ('{"IN":40,"OUT":"two"}', UNREADABLE),
    ('{"IN":40,"OUT":true}', UNREADABLE),
    ('{"IN":40,"OUT":-1}', UNREADABLE),
    ('{"IN":-9223372036854775808,"OUT":2}', UNREADABLE),
    ('{"IN":9223372036854775808,"OUT":2}', UNREADABLE),
    ('{"IN":1e308,"OUT":2}', UNREADABLE),
    ('{"IN":NaN,"OUT":2}', UNREADABLE),
    ('{"IN":40,"OUT":Infinity}', UNREADABLE),
    (f'{{"IN":{COUNT_MAX + 1},"OUT":2}}', UNREADABLE),
    (f'{{"IN":{COUNT_MAX},"OUT":2}}', Usage(COUNT_MAX, 2)),
    ('{"IN":0,"OUT":0}', UNREADABLE),
    ('{"IN":{"tokens":{"total":40}},"OUT":2}', UNREADABLE),
    ('{"IN":' + "[" * 200 + "]" * 200 + ',"OUT":2}', UNREADABLE),
)
"""Values of the field ``usage``, empty where it is absent, with what is to be read of each."""


def form_of(text: str) -> int:
    """Return the form in which the usage of an answer to this text is sent, always the same."""
    return int.from_bytes(blake2b(text.encode(), digest_size=2, person=b"usage").digest(), "big") % len(FORMS)


def read_as(text: str) -> Usage:
    """Return what is to be read of the usage of an answer to this text."""
    return FORMS[form_of(text)][1]


def odd_reply(text: str, answer: str, batched: bool) -> Reply:
    """Return the answer to a text with such usage, as the client reads it: of Chat Completions, of Messages, or of
    message batches.
    """
    return read_form(form_of(text), answer, batched or len(text) % 2 == 0, batched)


def read_form(form: int, answer: str, messages: bool, batched: bool) -> Reply:
    """Return an answer with this form of usage as a client reads it; ``messages``: that of the Messages API."""
    if not messages:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
        return read_completion(_body({"model": "m", "choices": [choice]}, form, "prompt_tokens", "completion_tokens"))
    content = [{"type": "text", "text": answer}]
    fields = {"type": "message", "role": "assistant", "model": "m", "content": content, "stop_reason": "end_turn"}
    body = _body(fields, form, "input_tokens", "output_tokens")
    if not batched:
        return read_message(body)
    _, outcome = read_result(b'{"custom_id":"a","result":{"type":"succeeded","message":' + body + b"}}")
    assert isinstance(outcome, Reply), outcome
    return outcome


def _body(fields: dict[str, Any], form: int, given: str, output: str) -> bytes:
    """Return an answer as JSON, with this form of usage, which need not be JSON."""
    usage = FORMS[form][0].replace("IN", given).replace("OUT", output).replace("OTHER", "details").encode()
    return msgspec.json.encode(fields)[:-1] + (b',"usage":' + usage if usage else b"") + b"}"
