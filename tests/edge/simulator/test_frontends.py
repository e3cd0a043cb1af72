"""Both faces of the simulated provider are one: a call that goes through HTTP and the project's own client ends as the
same call does in process, reply for reply to the byte and failure for failure by kind."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors.providers.credentials.credential import Credential
from actors.providers.messages.client import AnthropicModel
from actors.simulator.faults import FAULTS
from actors.simulator.frontends.http_app import serve
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import SimulatorSettings
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.support.patience import PATIENCE_S

STREAMED_TOKENS = 20_000  # above it the project's client asks for a stream


def request(text: str, max_tokens: int = 100) -> bytes:
    return msgspec.json.encode(
        {"model": "sim", "max_tokens": max_tokens, "messages": [{"role": "user", "content": text}]}
    )


async def both(settings: dict[str, Any], bodies: list[bytes], timeout_s: float = PATIENCE_S) -> list[tuple[Any, Any]]:
    near = SimulatedModel(SimulatorSettings(**settings))
    server = await serve(SimulatorSettings(**settings))
    far = AnthropicModel(Credential(api_key="k", base_url=server.url))
    found = []
    try:
        await far.count_tokens(bodies[0])  # it has met its server before anything is timed
        for body in bodies:
            tokens = msgspec.json.decode(body)["max_tokens"]
            found.append(
                (
                    await near.call(body, output_tokens_max=tokens, timeout_s=timeout_s),
                    await far.call(body, output_tokens_max=tokens, timeout_s=timeout_s),
                )
            )
        assert timeout_s <= PATIENCE_S
        if server.provider.stats()["requests"] < len(bodies):  # a busy machine had not sent it when the time was over
            return await both(settings, bodies, 4 * timeout_s)
        assert await near.count_tokens(bodies[0]) == await far.count_tokens(bodies[0])
        ours, theirs = near.provider.stats(), server.provider.stats()
        names = ["requests", "complete_answers", "second_complete_answers", "faults"]
        if "stream_error" not in settings.get("faults", {}):  # only a stream has begun to be worked out by then
            names += ["worked", "output_tokens"]
        for name in names:
            assert ours[name] == theirs[name], name
    finally:
        await far.close()
        await server.close()
    return found


async def test_replies_are_the_same_to_the_byte() -> None:
    labels = "Answer with one of: red, green, blue.\n\nText: a red thing"
    bodies = [
        request(labels),
        request(labels),
        request("Say hello", STREAMED_TOKENS),
        request("é — ü", STREAMED_TOKENS),
    ]
    bodies += [request("Reply with exactly 'one two three four'", 2)]
    for near, far in await both({"seed": 6, "error": 0.5}, bodies * 6):
        assert isinstance(near, Reply)
        assert near == far


@pytest.mark.parametrize("max_tokens", [100, STREAMED_TOKENS])
@pytest.mark.parametrize("fault", FAULTS)
async def test_faults_are_taken_for_the_same(fault: str, max_tokens: int) -> None:
    settings = {"faults": {fault: 1.0}, "error": 0.0, "drip_s": 60.0}
    slow = fault in ("hang", "slow_drip")
    [(near, far)] = await both(settings, [request("Say hello", max_tokens)], timeout_s=0.4 if slow else PATIENCE_S)
    if isinstance(near, Failure):
        assert isinstance(far, Failure)
        if fault == ("invalid_json" if max_tokens == STREAMED_TOKENS else "truncated"):
            assert far.kind is FailureKind.UNREADABLE  # in memory nothing of an answer comes
        else:
            assert near.kind is far.kind
        assert (near.retry_after_s, near.sent) == (far.retry_after_s, far.sent)
        assert near.error_type == far.error_type
        if near.status and fault != "stream_error":  # an error inside a stream follows status 200
            assert (near.status, near.message) == (far.status, far.message)
    else:
        assert near == far


@pytest.mark.parametrize("max_tokens", [100, STREAMED_TOKENS])
async def test_what_counts_as_delivered_is_what_a_client_takes_for_an_answer(max_tokens: int) -> None:
    """A message that was cut behind its content is one. Each of these is cut at another place."""
    server = await serve(SimulatorSettings(faults={"truncated": 1.0}))
    model = AnthropicModel(Credential(api_key="k", base_url=server.url))
    try:
        found = [
            await model.call(request(f"Say {number}", max_tokens), output_tokens_max=max_tokens, timeout_s=PATIENCE_S)
            for number in range(80)
        ]
    finally:
        await model.close()
        await server.close()
    answers = sum(isinstance(each, Reply) for each in found)
    assert server.provider.stats()["complete_answers"] == answers
    assert (0 < answers < 80) if max_tokens == 100 else not answers, "of both kinds, but streams have no such end"
