"""The simulated model in process: a model like any other, its failures in the closed list, and light to import."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from actors.ports.model import Model
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import SimulatorSettings
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.virtual_clock import virtually
from tests.support.repository_rules import ROOT

NOW = 1_800_000_000.0


def request(text: str = "Say hello", **more: Any) -> bytes:
    plain = {"model": "sim", "max_tokens": 100, "messages": [{"role": "user", "content": text}]}
    return msgspec.json.encode(plain | more)


def simulated(**settings: Any) -> SimulatedModel:
    return SimulatedModel(SimulatorSettings(**{"error": 0.0, **settings}), clock=lambda: NOW)


async def call(model: Model, body: bytes, timeout_s: float = 5.0, **more: Any) -> Reply | Failure:
    return await model.call(body, output_tokens_max=100, timeout_s=timeout_s, **more)


async def test_a_reply_is_the_providers_message() -> None:
    model = simulated()
    entries: list[int] = []
    reply = await call(model, request(), progress=entries.append)
    assert isinstance(reply, Reply)
    assert (reply.text, reply.stop_reason, reply.model) == ("hello", "end_turn", "sim")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (6, 2)
    message = msgspec.json.decode(reply.body)
    assert (message["type"], message["role"], message["usage"]["output_tokens"]) == ("message", "assistant", 2)
    assert entries == [2]
    stats = model.provider.stats()
    assert (stats["complete_answers"], stats["in_flight"], stats["in_flight_max"]) == (1, 0, 1)
    assert await model.count_tokens(request()) == 6
    assert await model.count_tokens(b"{}") is None
    await model.close()


async def test_the_same_settings_and_calls_give_the_same_run() -> None:
    faults = {"overloaded": 0.2, "truncated": 0.1, "refusal": 0.1}
    runs = []
    for _ in range(2):
        model = simulated(seed=4, error=0.3, faults=faults)
        bodies = [request(f"Answer yes or no.\n\nQuestion: {n % 20}\n\nNote: {n % 3}") for n in range(200)]
        runs.append([await call(model, body) for body in bodies])
    assert runs[0] == runs[1]
    assert {type(each) for each in runs[0]} == {Reply, Failure}


def test_the_endpoint_names_what_answers() -> None:
    plain = simulated()
    assert plain.endpoint.startswith("sim:")
    assert plain.endpoint == simulated(latency_ms=5, faults={"reset": 0.1}, credit_calls=1).endpoint
    assert plain.endpoint != simulated(seed=1).endpoint != simulated(error=0.5).endpoint


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("throttled", FailureKind.THROTTLED),
        ("throttled_bare", FailureKind.THROTTLED),
        ("overloaded", FailureKind.OVERLOADED),
        ("server_error", FailureKind.TRANSIENT),
        ("billing", FailureKind.BLOCKED),
        ("credit", FailureKind.BLOCKED),
        ("spend_limit", FailureKind.BLOCKED),
        ("tier_cap", FailureKind.BLOCKED),
        ("unknown_model", FailureKind.BLOCKED),
        ("unauthorised", FailureKind.UNAUTHORISED),
        ("reset", FailureKind.TRANSIENT),
        ("reset_late", FailureKind.TRANSIENT),
        ("hang", FailureKind.TIMED_OUT),
        ("truncated", FailureKind.TRANSIENT),
        ("invalid_json", FailureKind.TRANSIENT),
        ("slow_drip", FailureKind.TIMED_OUT),
        ("wrong_content_type", FailureKind.TRANSIENT),
    ],
)
async def test_faults_are_failures_of_the_closed_list(fault: str, kind: FailureKind) -> None:
    model = simulated(faults={fault: 1.0})
    failure = await call(model, request(), timeout_s=0.005)
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.sent) == (kind, True)
    assert failure.retry_after_s == (1.0 if fault == "throttled" else None)
    assert model.provider.stats()["complete_answers"] == 0
    assert model.provider.stats()["in_flight"] == 0


async def test_a_refusal_and_an_empty_answer_are_replies() -> None:
    for fault, reason in (("refusal", "refusal"), ("empty", "end_turn")):
        reply = await call(simulated(faults={fault: 1.0}), request())
        assert isinstance(reply, Reply)
        assert (reply.text, reply.stop_reason) == ("", reason)


async def test_a_slow_drip_in_time_and_a_hang_that_ends() -> None:
    assert isinstance(await call(simulated(faults={"slow_drip": 1.0}, drip_s=0.002), request()), Reply)
    closed = await call(simulated(faults={"hang": 1.0}, hang_s=0.002), request())
    assert isinstance(closed, Failure) and closed.kind == FailureKind.TRANSIENT


async def test_latency_over_the_deadline_is_a_timeout_that_was_worked_out() -> None:
    model = simulated(latency_ms=50, latency_spread=0)
    late = await call(model, request(), timeout_s=0.002)
    assert isinstance(late, Failure) and late.kind == FailureKind.TIMED_OUT
    stats = model.provider.stats()
    assert (stats["worked"], stats["complete_answers"]) == (1, 0)


async def test_limits_are_told_as_a_provider_tells_them() -> None:
    model = simulated(rpm=2, itpm=100)
    assert model.rate is None
    await call(model, request())
    assert model.rate is not None
    assert (model.rate.requests.limit, model.rate.requests.remaining) == (2, 1)
    assert model.rate.requests.reset_after_s == 30.0
    assert (model.rate.input_tokens.limit, model.rate.input_tokens.remaining) == (100, 94)
    await call(model, request())
    throttled = await call(model, request())
    assert isinstance(throttled, Failure)
    assert (throttled.kind, throttled.retry_after_s) == (FailureKind.THROTTLED, 30.0)


async def test_bad_bodies_are_rejected_not_raised() -> None:
    for body in (b"", b"[]", b"{}", request(""), request(nonsense=1)):
        failure = await call(simulated(), body)
        assert isinstance(failure, Failure) and failure.kind == FailureKind.REJECTED
    long = await call(simulated(context_window=50), request("word " * 60))
    assert isinstance(long, Failure) and long.kind == FailureKind.TOO_LARGE


def test_needs_neither_an_http_library_nor_the_sdk() -> None:
    source = (
        "import sys, actors.simulator.frontends.in_memory; "
        "print([n for n in ('aiohttp', 'anthropic', 'httpx2', 'ray', 'rich') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def ends(model: Any, calls: int, gives_up_s: float) -> list[tuple[int, float]]:
    """Return number and time of the end of each call, begun a millisecond apart; negative if it timed out. The fourth
    gives up after ``gives_up_s``."""
    ended: list[tuple[int, float]] = []

    async def one(number: int, timeout_s: float) -> None:
        await asyncio.sleep(number / 1_000)
        result = await call(model, request(f"Say {number}"), timeout_s)
        late = isinstance(result, Failure) and result.kind is FailureKind.TIMED_OUT
        ended.append((-number if late else number, round(asyncio.get_running_loop().time(), 1)))

    await asyncio.gather(*[one(number, gives_up_s if number == 4 else 60.0) for number in range(1, calls + 1)])
    return ended


def test_a_server_with_slots_lets_further_calls_wait_in_their_order() -> None:
    async def run() -> list[tuple[int, float]]:
        return await ends(simulated(slots=2, latency_ms=1_000, latency_spread=0), 7, 0.9)

    assert virtually(run()) == [(-4, 0.9), (1, 1.0), (2, 1.0), (3, 2.0), (5, 2.0), (6, 3.0), (7, 3.0)]


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ({"batch_half": 2.0}, [(1, 2.0), (2, 2.0), (-4, 3.5), (3, 4.0), (5, 5.5), (6, 5.9)]),
        ({"kv_tokens": 9}, [(1, 1.0), (2, 2.0), (3, 3.0), (-4, 3.5), (5, 4.5), (6, 5.5)]),
    ],
    ids=["two answers take twice the time of each", "two prompts do not fit"],
)
def test_a_server_with_a_batch_works_on_what_its_slots_and_its_cache_hold(
    queue: dict[str, float], expected: list[tuple[int, float]]
) -> None:
    async def run() -> list[tuple[int, float]]:
        model = simulated(slots=2, latency_ms=1_000, latency_spread=0, **queue)
        ended = await ends(model, 6, 3.5)
        batch = model.provider.batch
        assert batch is not None and (batch.working, batch.waiting) == (0, 0)
        return ended

    assert virtually(run()) == expected
