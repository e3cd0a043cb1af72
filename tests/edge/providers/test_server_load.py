"""Load of a model server, read from its metrics. The texts are made by hand after the servers' documentation."""

from __future__ import annotations

import pytest

from actors.providers.credentials.credential import Credential
from actors.providers.transport import server_load
from actors.providers.transport.server_load import EVERY_S, NAMES, Load, ServerLoad, load_in, read_metrics
from cortex.values.bounds.counts import COUNT_MAX
from tests.edge.support.scripted_http_server import LATE_S, Step, scripted
from tests.edge.support.socket_actors import until
from tests.support.patience import PATIENCE_S

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-8B"} 250.0
vllm:num_requests_running{engine="1",model_name="Qwen/Qwen3-8B"} 240.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-8B"} 7.0
vllm:num_requests_waiting{engine="1",model_name="Qwen/Qwen3-8B"} 0.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="Qwen/Qwen3-8B",reason="capacity"} 7.0
vllm:iteration_tokens_total_bucket{le="+Inf",model_name="Qwen/Qwen3-8B"} 3.0
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m"} 162.0
sglang:num_used_tokens{model_name="m"} 123859.0
sglang:num_queue_reqs{model_name="m"} 2826.0
"""
LLAMA = """\
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 12
"""
TGI = 'tgi_batch_current_size 32\ntgi_queue_size 5\ntgi_request_duration_bucket{le="1"} 3\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VLLM, (490, 7)), (SGLANG, (162, 2826)), (LLAMA, (4, 12)), (TGI, (32, 5)), (VLLM.replace("\n", "\r\n"), (490, 7)),
        ("", None), ("<html></html>", None), ('{"error": "not found"}', None), (VLLM.partition("# TYPE vllm:num_requests_w")[0], None),
        ("process_cpu_seconds_total 3.5\n", None), (LLAMA.replace(" 12", " NaN"), (4, 0)), (LLAMA.replace(" 12", " -3"), (4, 0)),
        (LLAMA.replace(" 12", " +Inf"), (4, COUNT_MAX)), (LLAMA.replace(" 12", " 1e300"), (4, COUNT_MAX)),
        (LLAMA.replace(" 12", " 12 1790000000000"), (4, 12)),
    ],
)  # fmt: skip
def test_the_gauges_of_each_server_are_read(text: str, expected: Load) -> None:
    assert load_in(text) == expected


def test_a_broken_line_is_an_error() -> None:
    with pytest.raises(ValueError):
        load_in(LLAMA.replace(" 12", " twelve"))


def answering(status: int, text: str) -> bytes:
    body = text.encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: text/plain\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body


async def taken(load: ServerLoad) -> Load:
    """Take a reading, once it is there."""
    load.take()
    assert load._task is not None
    await load._task
    return load.take()


class Clock:
    """Clock of readings that is set by hand; each reading has all the time that it takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at_s = 100.0
        monkeypatch.setattr(server_load, "time", self)
        monkeypatch.setattr(read_metrics, "__defaults__", (PATIENCE_S,))

    def monotonic(self) -> float:
        return self.at_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def test_a_reading_is_returned_once_and_the_next_one_is_made_a_second_later(clock: Clock) -> None:
    async with scripted(lambda asked: [answering(200, LLAMA)]) as server:
        load = ServerLoad(f"{server.url}/v1", lambda: Credential(api_key="sk-own"))
        assert await taken(load) == (4, 12)
        assert load.take() is None
        assert [(each.method, each.target) for each in server.asked] == [("GET", "/metrics")]
        assert server.asked[0].headers["authorization"] == "Bearer sk-own"
        first = load._task
        clock.at_s += 0.9 * EVERY_S
        assert load.take() is None and load._task is first
        clock.at_s += 0.2 * EVERY_S
        assert await taken(load) == (4, 12)
        assert len(server.asked) == 2
        await load.close()


@pytest.mark.parametrize(
    ("answer", "again_s"),
    [
        ([answering(404, "404 page not found")], 60.0), ([answering(200, "<html></html>")], 60.0),
        ([answering(401, "no")], 60.0), ([answering(200, LLAMA.replace(" 4", " four"))], 1.0), ([Step.RESET], 1.0),
    ],
)  # fmt: skip
async def test_a_server_that_tells_nothing_is_asked_again_later(
    answer: list[bytes | Step], again_s: float, clock: Clock
) -> None:
    async with scripted(lambda asked: answer) as server:
        load = ServerLoad(server.url, Credential)
        assert await taken(load) is None
        assert load._due_s == clock.at_s + again_s
        await load.close()


async def test_named_metrics_are_read_elsewhere_and_those_of_replicas_are_added(clock: Clock) -> None:
    async with scripted(lambda asked: [answering(200, LLAMA)]) as one, scripted(lambda asked: [answering(200, TGI)]) as two:
        named = (f"{one.url}/gpu-1/metrics", f"{two.url}/metrics")
        load = ServerLoad("http://gateway.example:8000/v1", lambda: Credential(api_key="sk-own"), named)
        assert await taken(load) == (4 + 32, 12 + 5)
        assert [each.target for each in (*one.asked, *two.asked)] == ["/gpu-1/metrics", "/metrics"]
        assert not any("authorization" in each.headers for each in (*one.asked, *two.asked)), "another host gets no key"
        await load.close()


async def test_a_replica_that_is_away_leaves_the_others_and_is_asked_again(clock: Clock) -> None:
    async with scripted(lambda asked: [answering(200, LLAMA)]) as one, scripted(lambda asked: [Step.RESET]) as two:
        load = ServerLoad(one.url, Credential, (f"{one.url}/metrics", f"{two.url}/metrics"))
        assert await taken(load) == (4, 12)
        assert load._due_s == clock.at_s + EVERY_S
        await load.close()


@pytest.mark.parametrize(
    ("answer", "problem", "told"),
    [
        ([answering(404, "no")], "answered 404", True),
        ([answering(200, "<html></html>")], "holds no queue's metrics (looked for vllm:num_requests_running with vllm:num_requests_waiting, ", True),
        ([answering(200, LLAMA.replace(" 4", " four"))], "cannot be read: ValueError", False),
        ([Step.RESET], "cannot be read: ", False),
        ([Step.LATE], "cannot be read: no answer in time", False),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_metrics_is_said(answer: list[bytes | Step], problem: str, told: bool) -> None:
    async with scripted(lambda asked: answer) as server:
        found = await read_metrics(f"{server.url}/metrics", server.url, Credential(api_key="sk-own"), 0.9 * LATE_S)
    assert (found.load, found.told) == (None, told)
    assert found.problem.startswith(problem)
    assert all(name in found.problem for pair in NAMES.items() for name in pair) is problem.startswith("holds")


async def test_named_metrics_that_tell_nothing_are_logged_once(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    async with scripted(lambda asked: [answering(404, "no")]) as server:
        load = ServerLoad(server.url, Credential, (f"{server.url}/metrics",))
        for _ in range(2):
            load._due_s = 0.0
            assert await taken(load) is None
        await load.close()
    assert [each.getMessage() for each in caplog.records] == [
        f"--metrics-from {server.url}/metrics: answered 404; the wait is found without it"
    ]


async def test_it_ends_in_the_middle_of_a_reading() -> None:
    async with scripted(lambda asked: [Step.HANG]) as server:
        load = ServerLoad(server.url, Credential)
        load.take()
        await until(lambda: bool(server.asked))
        await load.close()
        assert load._task is None
