"""The simulated provider's decisions and counts: faults by share, limits, credit, bounds; time is an argument."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

import msgspec
import pytest

from actors.providers.messages.vocabulary import classify
from actors.simulator.api.provider import RequestOutcome, SimulatedProvider
from actors.simulator.counters import IdentityCounter
from actors.simulator.faults import FAULTS
from actors.simulator.request import BadRequest, read
from actors.simulator.settings import SettingsError, SimulatorSettings
from actors.simulator.token_buckets import next_month, rfc3339
from policies.estimates.tokens import body_tokens_bound
from policies.failures.failure import FailureKind

NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z


def request(text: str = "Say hello", **more: Any) -> bytes:
    plain = {"model": "sim", "max_tokens": 100, "messages": [{"role": "user", "content": text}]}
    return msgspec.json.encode(plain | more)


def provider(**settings: Any) -> SimulatedProvider:
    return SimulatedProvider(SimulatorSettings(**{"error": 0.0, **settings}))


def names(outcomes: list[RequestOutcome]) -> list[str]:
    return [each.fault.name if each.fault else "" for each in outcomes]


# ------------------------------------------------------------------------------------------ requests


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "The request body is not valid JSON"),
        (b"[]", "body: Input should be an object"),
        (b'{"model":"m","max_tokens":1}', "messages: Field required"),
        (request(max_tokens="9"), "max_tokens: Input should be a valid integer"),
        (request(max_tokens=-1), "max_tokens: Input should be greater than or equal to 0"),
        (request(model=""), "model: String should have at least 1 character"),
        (request(messages=[]), "messages: at least one message is required"),
        (request(messages=[{"role": "assistant", "content": "a"}]), 'messages: first message must use the "user" role'),
        (request(""), "messages.0: all messages must have non-empty content"),
        (request(messages=[{"role": "user"}]), "messages.0.content: Field required"),
        (request(best_of=2), "best_of: Extra inputs are not permitted"),
        (request(temperature=3), "temperature: range: 0..1"),
        (
            msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "a"}]}),
            "max_tokens: Field required",
        ),
    ],
)
def test_a_bad_request_is_refused_in_the_providers_words(body: bytes, told: str) -> None:
    sim = provider()
    refusal = sim.decide(body, NOW).refusal
    assert refusal is not None
    assert (refusal.status, refusal.error_type) == (400, "invalid_request_error")
    assert refusal.message.startswith(told)
    assert classify(refusal.status, refusal.error_type, refusal.message) == FailureKind.REJECTED
    assert (sim.tally.bad_requests, sim.tally.worked) == (1, 0)


def test_reads_blocks_tool_results_and_identity() -> None:
    blocks = [{"type": "text", "text": "one"}, {"type": "tool_result", "tool_use_id": "t", "content": "two"}]
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {"at": 1}}
    turns = [
        {"role": "user", "content": "do"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": blocks},
    ]
    asked = read(request(messages=turns, system=[{"type": "text", "text": "be"}]))
    assert (asked.text, asked.system) == ('do\n\nlook {"at":1}\n\none\n\ntwo', "be")
    plain, streamed = read(request()), read(request(stream=True))
    assert plain.body_id == streamed.body_id and streamed.stream
    other = read(request(metadata={"user_id": "u1"}))
    assert (other.body_id == plain.body_id, other.text_id == plain.text_id, other.user_id) == (False, True, "u1")
    assert read(request(system="x")).text_id != plain.text_id


def test_tokens_stay_below_the_bound_that_clients_send_by() -> None:
    for body in (
        request("x"),
        request("word " * 50, system="s"),
        request("é" * 40),
        request(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 20),
        request(messages=[{"role": "user", "content": [{"type": "image", "source": {"data": "A" * 90_000}}]}]),
    ):
        assert 0 < read(body).input_tokens <= body_tokens_bound(body)


# ------------------------------------------------------------------------------------------ faults


def test_faults_come_by_share_and_repeatably() -> None:
    shares = {"overloaded": 0.1, "reset": 0.05, "refusal": 0.1}
    settings: dict[str, Any] = {"seed": 5, "faults": shares}
    bodies = [request(f"Say hello{number}") for number in range(2_000)]
    first = provider(**settings)
    outcomes = [first.decide(body, NOW) for body in bodies]
    again = provider(**settings)
    assert names([again.decide(body, NOW) for body in reversed(bodies)][::-1]) == names(outcomes)  # in any order
    counted = {name: names(outcomes).count(name) for name in shares}
    assert 160 < counted["overloaded"] < 240 and 70 < counted["reset"] < 130 and 160 < counted["refusal"] < 240
    assert first.tally.faults == counted
    # The same request again is drawn anew: a fault does not stick to its row.
    stuck = [body for body, name in zip(bodies, names(outcomes), strict=True) if name]
    assert names([first.decide(body, NOW) for body in stuck]).count("") > len(stuck) // 2


@pytest.mark.parametrize(
    ("name", "status", "kind", "said"),
    [
        ("throttled", 429, FailureKind.THROTTLED, "rate limit"),
        ("throttled_bare", 429, FailureKind.THROTTLED, "rate limit"),
        ("overloaded", 529, FailureKind.OVERLOADED, "Overloaded"),
        ("server_error", 500, FailureKind.TRANSIENT, "Internal server error"),
        ("unavailable", 503, FailureKind.OVERLOADED, "unavailable"),
        ("billing", 402, FailureKind.BLOCKED, "billing"),
        ("credit", 400, FailureKind.BLOCKED, "Your credit balance is too low to access the Anthropic API"),
        ("spend_limit", 400, FailureKind.BLOCKED, "You will regain access on 2027-02-01 at 00:00 UTC."),
        ("tier_cap", 429, FailureKind.BLOCKED, "monthly usage limit"),
        ("unknown_model", 404, FailureKind.BLOCKED, "model: sim"),
        ("unauthorised", 401, FailureKind.UNAUTHORISED, "x-api-key"),
        ("stream_error", 529, FailureKind.OVERLOADED, "Overloaded"),
    ],
)
def test_every_refusal_is_what_it_is_taken_for(name: str, status: int, kind: FailureKind, said: str) -> None:
    sim = provider(faults={name: 1.0}, throttled_retry_after_s=7)
    outcome = sim.decide(request(), NOW)
    refusal = outcome.refusal
    assert refusal is not None and outcome.answer is None
    assert refusal.status == status and said in refusal.message and "{" not in refusal.message
    assert classify(refusal.status, refusal.error_type, refusal.message, refusal.error_code) == kind
    assert refusal.retry_after_s == (7 if name == "throttled" else None)
    assert refusal.error_code == ("enforced_spend_limit_reached" if name == "tier_cap" else "")
    assert sim.tally.worked == 0


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.refusal is None])
def test_what_breaks_after_the_work_was_worked_out(name: str) -> None:
    sim = provider(faults={name: 1.0})
    outcome = sim.decide(request(), NOW)
    assert outcome.refusal is None
    assert (outcome.answer is not None, sim.tally.worked) == (name != "reset", int(name != "reset"))
    assert sim.tally.complete_answers == 0
    if name in ("refusal", "empty"):
        facts = outcome.message()
        assert (facts["content"], facts["stop_reason"]) == ([], "refusal" if name == "refusal" else "end_turn")
    elif outcome.answer is not None:
        assert outcome.answer.text == "hello"


# ------------------------------------------------------------------------------------------ latency


def test_latency_is_drawn_around_its_mean() -> None:
    sim = provider(latency_ms=100, latency_ms_per_output_token=10)
    outcomes = [sim.decide(request(f"Say hello{number}"), NOW) for number in range(2_000)]
    first = sorted(each.first_s for each in outcomes)
    assert 0.095 < sum(first) / len(first) < 0.105
    assert 1.7 < first[1_900] / 0.1 < 2.4  # p95 at twice the mean
    for each in outcomes[:50]:
        assert each.answer is not None
        assert each.latency_s == pytest.approx(each.first_s + 0.01 * each.answer.output_tokens)
    even = provider(latency_ms=100, latency_spread=0)
    assert even.decide(request(), NOW).first_s == 0.1
    assert provider().decide(request(), NOW).latency_s == 0


# ------------------------------------------------------------------------------------------ bounds


def test_window() -> None:
    sim = provider(context_window=1_000)
    fits = sim.decide(request("word " * 800, max_tokens=197), NOW)
    assert fits.refusal is None and fits.ask is not None and fits.ask.input_tokens == 803
    over = sim.decide(request("word " * 800, max_tokens=198), NOW).refusal
    long = sim.decide(request("word " * 1_000, max_tokens=1), NOW).refusal
    assert over is not None and "803 + 198 > 1000" in over.message
    assert long is not None and long.message == "prompt is too long: 1003 tokens > 1000 maximum"
    for each in (over, long):
        assert classify(each.status, each.error_type, each.message) == FailureKind.TOO_LARGE
    assert sim.tally.largest_prompt_tokens == 1_003
    assert sim.tally.largest_request_tokens == 1_004
    assert (sim.tally.prompts_too_long, sim.tally.worked) == (2, 1)


def test_known_models() -> None:
    sim = provider(models=("one", "two"))
    assert sim.decide(request(model="two"), NOW).refusal is None
    refusal = sim.decide(request(model="three"), NOW).refusal
    assert refusal is not None and (refusal.status, refusal.message) == (404, "model: three")


def test_credit_by_calls_runs_out_and_is_topped_up() -> None:
    sim = provider(credit_calls=2)
    done = [sim.decide(request(f"Say a{number}"), NOW).refusal for number in range(4)]
    assert [each is None for each in done] == [True, True, False, False]
    assert done[3] is not None and "credit balance is too low" in done[3].message
    sim.change({"credit_calls": 1})
    assert sim.decide(request("Say b"), NOW).refusal is None
    assert sim.decide(request("Say c"), NOW).refusal is not None
    assert sim.tally.refused_credit == 3


def test_credit_in_money() -> None:
    sim = provider(credit_usd=0.0001, usd_per_mtok_input=3, usd_per_mtok_output=15)
    spent = 0
    while sim.decide(request(f"Say hello{spent}"), NOW).refusal is None:
        spent += 1
    each = (6 * 3 + 2 * 15) / 1_000_000  # three pieces and a message's framing in, two pieces out
    assert spent == math.ceil(0.0001 / each)  # the last answer may overdraw
    assert sim.stats()["credit_usd_left"] <= 0


# ------------------------------------------------------------------------------------------ limits


def headers(sim: SimulatedProvider, now_s: float) -> dict[str, str]:
    return {name.removeprefix("anthropic-ratelimit-"): text for name, text in sim.headers(now_s).items()}


def test_requests_a_minute() -> None:
    sim = provider(rpm=60)
    taken = [sim.decide(request(f"Say a{number}"), NOW).refusal for number in range(61)]
    assert [each for each in taken[:60] if each] == []
    assert taken[60] is not None and taken[60].retry_after_s == 1
    assert "60 requests per minute" in taken[60].message
    facts = headers(sim, NOW)
    assert facts == {"requests-limit": "60", "requests-remaining": "0", "requests-reset": rfc3339(NOW + 60)}
    assert sim.decide(request("Say b"), NOW + 1).refusal is None
    assert headers(sim, NOW + 31)["requests-remaining"] == "30"
    assert headers(sim, NOW + 300)["requests-remaining"] == "60"
    assert sim.tally.throttled_by_limit == 1
    assert provider().headers(NOW) == {}


def test_input_tokens_a_minute() -> None:
    sim = provider(itpm=600)
    body = request("word " * 297)  # 300 tokens with its framing
    assert [sim.decide(body, NOW).refusal is None for _ in range(3)] == [True, True, False]
    refusal = sim.decide(body, NOW).refusal
    assert refusal is not None and refusal.retry_after_s == 30 and "600 input tokens" in refusal.message
    assert sim.decide(body, NOW + 30).refusal is None
    small = sim.decide(request("Say a"), NOW + 30.5)
    assert small.refusal is None  # what is too much for one is not for another


def test_output_tokens_a_minute_are_owed() -> None:
    sim = provider(otpm=60)
    body = request("Reply with exactly '" + "word " * 69 + "word'", max_tokens=100)
    first = sim.decide(body, NOW)
    assert first.answer is not None and first.answer.output_tokens == 70
    refusal = sim.decide(body, NOW).refusal
    assert refusal is not None and refusal.retry_after_s == 11  # 10 owed and 1 wanted, at 1 a second
    assert sim.decide(body, NOW + 11).refusal is None
    facts = headers(sim, NOW + 11)
    assert (facts["output-tokens-limit"], facts["output-tokens-remaining"]) == ("60", "0")


def test_headers_name_all_limits_and_never_a_time_too_early() -> None:
    sim = provider(rpm=7, itpm=1_000, otpm=100)
    sim.decide(request(), NOW + 0.4)
    facts = headers(sim, NOW + 0.4)
    assert {name.rsplit("-", 1)[0] for name in facts} == {"requests", "input-tokens", "output-tokens", "tokens"}
    assert facts["tokens-limit"] == "1100"
    assert facts["tokens-reset"] == max(facts["input-tokens-reset"], facts["output-tokens-reset"])
    reset_s = datetime.fromisoformat(facts["requests-reset"]).timestamp()
    assert NOW + 0.4 + 60 / 7 <= reset_s <= NOW + 2 + 60 / 7


def test_tokens_of_both_directions_are_charged_ahead_and_named_as_openai_names_them() -> None:
    sim = provider(tpm=6_000, rpm=60, burst_s=6)
    asked = sim.decide(request("Say a", max_tokens=590), NOW)
    assert asked.refusal is None and asked.ask is not None
    left = 600 - asked.ask.input_tokens - 590
    assert sim.chat_headers(NOW) == {
        "x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000", "x-ratelimit-remaining-tokens": str(left),
        "x-ratelimit-reset-tokens": f"{(600 - left) / 100:.3g}s",
    }  # fmt: skip
    refusal = sim.decide(request("Say b", max_tokens=590), NOW).refusal
    assert refusal is not None and refusal.retry_after_s == 6


def test_a_bucket_holds_what_it_is_told_to() -> None:
    sim = provider(rpm=600, burst_s=2)
    taken = [sim.decide(request(f"Say a{number}"), NOW).refusal for number in range(21)]
    assert [number for number, refusal in enumerate(taken) if refusal] == [20]
    assert headers(sim, NOW + 60) == {
        "requests-limit": "600", "requests-remaining": "20", "requests-reset": rfc3339(NOW + 60)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("told", "named", "retry_after_s"), [("headers", 3, 10), ("retry-after", 0, 10), ("nothing", 0, None)]
)
def test_a_provider_may_tell_less_of_its_limits(told: str, named: int, retry_after_s: int | None) -> None:
    sim = provider(rpm=6, burst_s=10, limits_told=told)
    assert sim.decide(request("Say a"), NOW).refusal is None
    refusal = sim.decide(request("Say b"), NOW).refusal
    assert refusal is not None and (refusal.status, refusal.retry_after_s) == (429, retry_after_s)
    assert len(headers(sim, NOW)) == named


def test_a_months_end() -> None:
    assert next_month(NOW) == "2027-02-01"
    assert next_month(datetime.fromisoformat("2026-12-31T23:59:59Z").timestamp()) == "2027-01-01"


# ------------------------------------------------------------------------------------------ counts


def test_second_complete_answers_are_counted_by_body_and_by_user() -> None:
    sim = provider()
    for text, user in (("Say a", "u1"), ("Say a", "u2"), ("Say a", "u1"), ("Say b", "u1")):
        outcome = sim.decide(request(text, metadata={"user_id": user}), NOW)
        assert outcome.ask is not None
        sim.delivered(outcome.ask)
    stats = sim.stats()
    assert (stats["complete_answers"], stats["distinct_bodies_answered"], stats["second_complete_answers"]) == (4, 3, 1)
    assert (stats["distinct_users_answered"], stats["second_complete_answers_by_user"]) == (2, 2)
    assert (sim.answers_to_user("u1"), sim.answers_to_user("nobody")) == (3, 0)
    msgspec.json.encode(stats)


def test_worked_out_is_not_delivered() -> None:
    sim = provider()
    sim.decide(request(), NOW)
    assert (sim.tally.worked, sim.tally.complete_answers) == (1, 0)


def test_memory_is_bounded_and_says_what_it_forgot() -> None:
    memory = IdentityCounter(100)
    assert [memory.see(7), memory.answer(7), memory.see(7), memory.answer(7)] == [0, 0, 1, 1]
    for name in range(1_000, 1_040):
        memory.see(name)
    assert (memory.see(7), memory.answers(7), memory.forgotten) == (2, 2, 0)
    for name in range(2_000, 2_200):
        memory.see(name)
    assert memory.answers(7) == 0
    assert memory.forgotten > 0
    assert all(memory.see(name) == 1 for name in range(2_160, 2_200))


def test_settings_change_at_run_time() -> None:
    sim = provider()
    sim.change({"faults": {"overloaded": 1.0}})
    refused = sim.decide(request(), NOW).refusal
    assert refused is not None and refused.status == 529
    with pytest.raises(SettingsError):
        sim.change({"faults": {"nothing": 1.0}})
    assert sim.settings.faults == {"overloaded": 1.0}
    sim.change({"faults": {}, "error": 1.0, "rpm": 1})
    wrong = sim.decide(request("Answer yes or no.\n\nQuestion: x\n\nNote: y"), NOW)
    assert wrong.answer is not None and wrong.answer.erred
    assert sim.decide(request(), NOW).refusal is not None


def test_counting_tokens() -> None:
    body = msgspec.json.encode({"model": "sim", "messages": [{"role": "user", "content": "four words it is"}]})
    assert provider().count_tokens(body) == 5 + 3
    with pytest.raises(BadRequest):
        provider().count_tokens(b"{}")
