"""Why a job waits, in a few words, from K alone; and what a stopped one tells its user to do."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.api.progress_bar import ProgressBar, fitted, parts
from actors.cli.jobs.rendering import JobStatus, why
from actors.jobs.summary import summary
from actors.jobs.wait_reasons import WORDS_MAX, time_of_day, wait_facts, waits
from actors.monitoring.stall_detector import StallDetector
from cortex.admission.permits import granted_pace, own_pace
from cortex.calls.attempts import REST_S
from cortex.scheduler.pools import PoolMemo
from cortex.state.goals import Goal
from cortex.state.state import InFlightAttempt, State
from cortex.values.ledger import Charge
from cortex.values.limits import JobTerms, Limits, Route
from policies.failures.failure import Failure, FailureKind
from policies.limits.limit import NO_CAPS, PoolLimit
from policies.limits.limit_policy import ProbeMode
from policies.limits.pace import take
from policies.limits.probing import Probing
from policies.limits.refill import Refill
from tests.cli.cli_runner import environment, started
from tests.support.ports import free_port

OWN = Route(endpoint="https://api.anthropic.com", model="sonnet")
OTHER = Route(endpoint="http://gateway:8080", model="haiku")
NOW_S = time.time()


def _k(*fallbacks: Route, **fields: Any) -> State:
    made = JobTerms(job="j", program="batch", params_json=b"{}", fingerprint="f", route=OWN, fallbacks=fallbacks)
    k = State(made, at_s=NOW_S, live=5, **fields)
    for share in k.shares:
        share.permits = 4
    return k


def test_nothing_is_the_matter():
    assert waits(_k()) == []
    assert wait_facts(_k())["waits"] == ""
    assert wait_facts(_k())["route"] == "sonnet at api.anthropic.com"


def test_an_ended_job_waits_for_nothing():
    assert waits(_k(outcome="partial", paused=Failure(FailureKind.BLOCKED, "no credit"))) == []


def test_no_permits_yet():
    k = _k()
    k.shares[0].permits = 0
    assert waits(k) == ["waits for permits"]
    k.live = 0
    assert waits(k) == []


def test_a_limit_by_hand_is_told_in_the_words_of_the_cortex():
    k = _k()
    k.shares[0].why = "limited to 2 by ann"
    assert waits(k) == ["limited to 2 by ann"]


def test_an_open_breaker_and_the_fallback():
    k = _k(OTHER)
    k.shares[0].permits, k.shares[0].why = 0, "breaker open until 18:00:00"
    facts = wait_facts(k)
    assert facts["waits"] == "sonnet: breaker open until 18:00:00; on the fallback haiku"
    assert facts["route"] == "haiku at gateway:8080 (fallback 1)"
    assert [(each["route"], each["permits"]) for each in facts["routes"]] == [
        ("sonnet at api.anthropic.com", 0), ("haiku at gateway:8080", 4),
    ]  # fmt: skip


def test_an_open_breaker_says_how_long_it_stays_so():
    k = _k()
    k.shares[0].permits, k.shares[0].why, k.shares[0].again_at_s = 0, "the breaker is open: 9 of 10 failed", NOW_S + 7
    assert waits(k) == [f"the breaker is open: 9 of 10 failed; it is probed at {time_of_day(NOW_S + 7)}"]
    k.at_s = NOW_S + 7
    assert waits(k) == ["the breaker is open: 9 of 10 failed"]


NO_ROAD = Failure(FailureKind.TRANSIENT, "no connection: unknown host api.anthropic.com", sent=False)


def test_a_route_that_does_not_reply_is_named_with_its_error_and_since_when():
    k = _k()
    share = k.shares[0]
    share.permits, share.failing, share.failing_s = 0, NO_ROAD, NOW_S - 90
    assert waits(k) == ["waits for permits"] and not wait_facts(k)["routes"][0]["stands_still"]
    no_reply = f"no reply from sonnet at api.anthropic.com since {time_of_day(NOW_S - 90)}: {NO_ROAD.message}"
    share.why, share.again_at_s = "the breaker is open: 2 of 2 probes failed", NOW_S + 7
    assert waits(k) == [f"the breaker is open: {no_reply}; it is probed at {time_of_day(NOW_S + 7)}"]
    share.why, share.again_at_s = "half open, 2 to probe: 2 of 2 probes failed", 0.0
    assert waits(k) == [f"half open, 2 to probe: {no_reply}"]
    (route,) = wait_facts(k)["routes"]
    assert (route["stands_still"], route["failing"], route["failing_since_s"]) == (True, NO_ROAD.message, NOW_S - 90)
    share.why = "limited to 2 by ann"
    assert waits(k) == ["limited to 2 by ann"], "which is no matter of the provider's"


@pytest.mark.parametrize(
    ("status", "lacks"), [(0, "no reply"), (200, "no usable reply"), (500, "no usable reply"), (529, "no usable reply")]
)
def test_a_server_that_replies_with_errors_or_pages_is_not_said_to_be_silent(status: int, lacks: str) -> None:
    k = _k()
    share = k.shares[0]
    failing = Failure(FailureKind.TRANSIENT, "the answer is of type text/html, not JSON", status)
    share.permits, share.failing, share.failing_s, share.why = 0, failing, NOW_S - 90, "the breaker is open: 9 of 9 failed"
    words = f"{lacks} from sonnet at api.anthropic.com since {time_of_day(NOW_S - 90)}: {failing.message}"
    assert waits(k) == [f"the breaker is open: {words}"]
    (line,) = StallDetector().news(summary(k), NOW_S)
    assert line.startswith(f"waits: {words}")


def test_that_it_stands_still_is_said_once_and_that_it_goes_on_once():
    still, k = StallDetector(), _k()
    share = k.shares[0]

    def news(now_s: float) -> list[str]:
        return still.news(summary(k), now_s)

    assert news(NOW_S) == []
    share.failing, share.failing_s, share.why = NO_ROAD, NOW_S, "the breaker is open: 9 of 9 failed"
    assert news(NOW_S + 1) == [], "which is over in a moment, most times"
    where, since = "sonnet at api.anthropic.com", time_of_day(NOW_S)
    assert news(NOW_S + 6) == [
        f"waits: no reply from {where} since {since}: {NO_ROAD.message}; it is tried now and then, and the job goes on "
        "when it replies"
    ]
    share.why = "half open, 2 to probe: 2 of 2 probes failed"
    assert news(NOW_S + 60) == news(NOW_S + 600) == []
    share.why = ""
    assert news(NOW_S + 601) == [], "no reply came yet"
    share.failing, share.failing_s = None, 0.0
    assert news(NOW_S + 725) == [f"{where} replies again, after 12 min 05 s: the job goes on"]
    assert news(NOW_S + 726) == []


def test_what_says_why_nothing_goes_on_is_cut_and_not_left_out_of_a_narrow_line():
    k = _k()
    k.shares[0].permits, k.shares[0].failing, k.shares[0].failing_s = 0, NO_ROAD, NOW_S
    k.shares[0].why = "the breaker is open: 2 of 2 probes failed"
    text = fitted(parts(ProgressBar().facts(summary(k))), 60)
    assert len(text) <= 60 and "the breaker is open: no reply from" in text and text.endswith("…")


@pytest.mark.long
def test_a_job_that_has_no_road_to_the_provider_says_so_and_goes_on_when_there_is_one(tmp_path):
    port = free_port()
    (tmp_path / "in.csv").write_text("text\n" + "".join(f"row {n}\n" for n in range(20_000)))
    words = ("batch", "in.csv", "-o", "o.csv", "--prompt", "{{text}}", "--model", "m", "--job", "j", "--base-url")
    lines: list[str] = []
    with contextlib.ExitStack() as stack:
        env = environment(ANTHROPIC_API_KEY="sk-none")
        child = stack.enter_context(started(*words, f"http://127.0.0.1:{port}", cwd=tmp_path, env=env))
        assert child.stderr is not None
        for line in child.stderr:
            lines.append(line)
            if "waits: no reply" in line:
                stack.enter_context(started("simulate", "--port", port))
            if "replies again" in line:
                child.send_signal(signal.SIGINT)
        assert child.wait() in (0, 130)
    # A machine that is busy for ten seconds is told of beside it, as calls in flight without a reply.
    mine = [line for line in lines if re.match("cortex: j: (waits: no reply from|m at)", line)]
    assert re.match(
        rf"cortex: j: waits: no reply from m at 127.0.0.1:{port} since \d\d:\d\d:\d\d: no connection: ", mine[0]
    )
    assert re.match(rf"cortex: j: m at 127.0.0.1:{port} replies again, after [^:]+ s: the job goes on", mine[1])
    assert len(mine) == 2
    events = [line.get("event") for line in map(json.loads, filter(lambda line: line[0] == "{", lines))]
    assert events.count("job.waits") == 1


def test_a_rate_that_somebody_set_is_told_where_it_holds_calls_back():
    k = _k()
    k.shares[0].why = "paced by ann: 6 requests a minute for all jobs of this pool"
    k.shares[0].pace = own_pace(None, NOW_S, Limits(requests_per_min=6))
    assert k.shares[0].pace is not None
    assert waits(k) == []
    for _ in range(20):
        take(k.shares[0].pace, NOW_S, 0, 0)
    assert waits(k) == ["paced by ann: 6 requests a minute for all jobs of this pool"]


def test_probes_that_are_all_out_leave_the_fallback_to_be_used():
    k = _k(OTHER)
    k.shares[0].starts = 0
    assert wait_facts(k)["route"].startswith("haiku")
    k.shares[0].starts = 1
    assert wait_facts(k)["route"].startswith("sonnet")


def test_without_any_permit_the_route_is_the_one_that_calls_are_out_on():
    k = _k(OTHER)
    for share in k.shares:
        share.permits = 0
    assert wait_facts(k)["route"].startswith("sonnet")
    k.shares[1].in_flight = 2
    assert wait_facts(k)["route"].startswith("haiku")


def test_the_provider_says_to_wait():
    k = _k()
    k.shares[0].hold_as_told(NOW_S + 30)
    assert waits(k) == [f"the provider says to wait until {time_of_day(NOW_S + 30)}"]
    assert wait_facts(k)["routes"][0]["held_until_s"] == NOW_S + 30
    k.at_s = NOW_S + 30
    assert waits(k) == []
    assert wait_facts(k)["routes"][0]["held_until_s"] == 0


@pytest.mark.parametrize(
    ("told_s", "rest_s", "words"),
    [
        (30.0, 0.0, "the provider says to wait"),
        (0.2, 0.0, "the provider says to wait"),
        (5.0, REST_S, "the provider says to wait"),
        (0.0, REST_S, "the next call waits"),
        (0.2, REST_S, "the next call waits"),
        (-40.0, REST_S, "the next call waits"),
        (0.0, 60.0, "the next call waits"),
    ],
)
def test_the_provider_is_said_to_ask_for_a_wait_that_ends_when_it_named(told_s: float, rest_s: float, words: str):
    """Also in the last second; not for a rest after a call that came back, or the pause before a batch goes again."""
    k = _k()
    if told_s:
        k.shares[0].hold_as_told(NOW_S + told_s)
    k.shares[0].hold_until_s = max(k.shares[0].hold_until_s, NOW_S + rest_s)
    assert waits(k) == [f"{words} until {time_of_day(NOW_S + max(told_s, rest_s))}"]


def test_a_blocked_account_with_its_time():
    blocked = Failure(FailureKind.BLOCKED, "credit " * 100)
    k = _k(paused=blocked, paused_at_s=NOW_S)
    k.shares[0].blocked = blocked
    (text,) = waits(k)
    assert text.startswith("blocked: credit")
    assert len(text) < WORDS_MAX + 20
    k.shares[0].reset_s = NOW_S + 30
    assert waits(k)[0].startswith(f"blocked until {time_of_day(NOW_S + 30)}: credit")
    assert wait_facts(k)["paused_until_s"] == NOW_S + 30


def test_a_rate_of_ones_own():
    k = _k()
    k.pace = own_pace(None, NOW_S, Limits(requests_per_min=6))
    assert k.pace is not None
    assert waits(k) == []
    for _ in range(20):
        take(k.pace, NOW_S, 0, 0)
    assert waits(k) == ["paced by --rpm, --itpm or --otpm of this job"]
    k.wishes = False
    assert waits(k) == []


def _learned(limit: PoolLimit, at_s: float) -> bytes:
    """The memo of a grant that was written at ``at_s`` on the scheduler's clock."""
    return msgspec.msgpack.encode(PoolMemo((1, 1), at_s, "a cortex", limit, NO_CAPS, None))


@pytest.mark.parametrize(
    ("limit", "rates", "text"),
    [
        (PoolLimit(Probing(1.0, ProbeMode.RATE, rate=0.4, bound_at_s=900.0)), (0.4, 0.0, 0.0), "paced at 0.4/s since {}, after 429"),
        (PoolLimit(Probing(4.0, ProbeMode.CONCURRENCY, bound_at_s=900.0)), (12.5, 0.0, 0.0), "paced at 12.5/s since {}, after 429"),
        (PoolLimit(Probing(4.0), requests=Refill(per_s=10.0)), (9.5, 0.0, 0.0), "paced at 9.5/s, by rate-limit headers"),
        (PoolLimit(Probing(4.0), output_tokens=Refill(per_s=50.0)), (0.0, 0.0, 50.0), "paced at 3,000 output tokens a minute, by rate-limit headers"),
        (PoolLimit(Probing(4.0), tokens=Refill(per_s=50.0)), (0.2, 0.0, 0.0), "paced at 0.2/s, by rate-limit headers"),
        (PoolLimit(Probing(4.0, ProbeMode.RATE, rate=2.0, bound_at_s=900.0), requests=Refill(per_s=10.0)), (2.0, 0.0, 0.0), "paced at 2/s since {}, after 429"),
        (PoolLimit(Probing(4.0, ProbeMode.RATE, rate=20.0, bound_at_s=900.0), requests=Refill(per_s=10.0)), (10.0, 0.0, 0.0), "paced at 10/s, by rate-limit headers"),
        (PoolLimit(Probing(4.0)), (2.0, 0.0, 0.0), "paced at 2/s"),
    ],
)  # fmt: skip
def test_a_rate_that_was_learned_is_told_with_its_source_and_time(
    limit: PoolLimit, rates: tuple[float, float, float], text: str
):
    k = _k()
    share = k.shares[0]
    granted_pace(share, NOW_S, rates)
    share.memo, share.granted_at_s = _learned(limit, 1_000.0), NOW_S
    assert share.pace is not None
    for _ in range(20):
        take(share.pace, NOW_S, 100, 100)
    assert waits(k) == [text.format(time_of_day(NOW_S - 100))]


def test_a_number_of_calls_that_was_learned_is_told_with_its_source_and_time():
    k = _k()
    share = k.shares[0]
    share.why = "a share of the pool's limit"
    assert waits(k) == ["a share of the pool's limit"]
    limit = PoolLimit(Probing(7.5, ProbeMode.CONCURRENCY, bound_at_s=940.0))
    share.memo, share.granted_at_s = _learned(limit, 1_000.0), NOW_S
    assert waits(k) == [f"a share of the pool's limit: 7 calls at once after 429, since {time_of_day(NOW_S - 60)}"]


def test_draining():
    assert waits(_k(stopping="drain")) == ["draining"]


def _sleeping(**goal: Any) -> State:
    k = _k(next_goal=2)
    k.live = k.resting = 1
    k.goals[1] = Goal("nap", id=1, due_at_s=NOW_S + 600, **goal)
    k.delayed = [(NOW_S + 30, 1), (NOW_S + 600, 1)]  # the first one is of before
    return k


def test_a_flow_that_sleeps_says_until_when():
    k = _sleeping()
    assert waits(k) == [f"sleeps until {time_of_day(NOW_S + 600)}"]
    assert wait_facts(k)["sleeps_until_s"] == NOW_S + 600
    k.outcome = "partial"
    assert wait_facts(k)["sleeps_until_s"] == 0


def test_it_does_not_sleep_while_anything_else_goes_on():
    k = _sleeping()
    k.open_by_kind = {"x": {7: None}}
    assert (waits(k), wait_facts(k)["sleeps_until_s"]) == ([], 0)
    k = _sleeping()
    k.flights[1] = InFlightAttempt(1, 1, "0", b"", 0.0, Charge(0, 0), 0)
    assert (waits(k), wait_facts(k)["sleeps_until_s"]) == ([], 0)


def test_a_call_that_is_asked_again_later_does_not_sleep():
    k = _sleeping(tries=1, broken=1)
    assert waits(k) == [f"tries again at {time_of_day(NOW_S + 600)}"]
    assert wait_facts(k)["sleeps_until_s"] == 0


def test_the_live_line_says_it():
    k = _k()
    k.shares[0].why = "limited to 2 by ann"
    assert ProgressBar().line(summary(k)).endswith(", limited to 2 by ann")


def test_a_day_that_is_not_today_is_named():
    assert len(time_of_day(time.time() + 3 * 86_400)) == len("2026-12-01 00:00")


def _why(said: str, outcome: str = "partial") -> str:
    k = _k(outcome=outcome, why=said)
    return why(JobStatus(facts=summary(k), state=Path()))


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("blocked: credit balance is too low", "no row failed: .*credit, spend limit.*one call is sent first"),
        ("unauthorised: invalid x-api-key", "no row failed: .*ANTHROPIC_API_KEY.*one call is sent first"),
        ("throttled: slow down", "longer than a job may pause: resume it then"),
    ],
)
def test_what_to_do_stands_behind_why(said, advice):
    assert _why(said).startswith(f"{said}; ")
    assert re.search(advice, _why(said))


def test_a_deadline_says_what_no_reply_came_from():
    k = _k(OTHER, outcome="partial", why="deadline: 2026-12-01 00:00 UTC has passed")
    wanted = "deadline: 2026-12-01 00:00 UTC has passed; no reply from haiku at gateway:8080: no connection; resume with a later --deadline"
    k.shares[1].failing = Failure(FailureKind.TRANSIENT, "no connection")
    assert why(JobStatus(facts=summary(k), state=Path())) == wanted
    k.why = "cap: all of it is used"
    assert "no connection" not in why(JobStatus(facts=summary(k), state=Path()))


def test_a_drain_and_a_cancel_need_no_advice():
    assert _why("drain: by ann") == "drained by ann"
    assert _why("cancel: by ann", "cancelled") == "cancelled by ann"
    assert _why("condemned: its channel died 5 times").startswith(
        "condemned: its channel died 5 times; find what kills the job"
    )
    assert _why("over_budget: the next call could pass the cap") == "over_budget: the next call could pass the cap"
