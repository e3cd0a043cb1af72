"""Words of what a job waits for: each said once, with its end, and no wait that the provider did not ask for."""

from __future__ import annotations

import pytest

from actors.jobs.wait_reasons import waits
from cortex.scheduler.reports import PROVIDER_ASKS
from cortex.state.route_share import RouteShare
from cortex.state.state import State
from cortex.values.limits import JobTerms, Route
from policies.failures.failure import Failure, FailureKind

TERMS = JobTerms(
    job="j", program="batch", params_json=b"{}", fingerprint="f", route=Route(endpoint="https://a.test", model="m")
)


def said(share: RouteShare, paused: Failure | None = None) -> str:
    """Return the words of a job with this share, at second 100."""
    k = State(terms=TERMS)
    k.at_s, k.paused, k.shares[0] = 100.0, paused, share
    return "; ".join(waits(k))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (FailureKind.BLOCKED, "there is no model m: give a --model that is served there"),
        (FailureKind.UNAUTHORISED, "invalid x-api-key"),
    ],
)
def test_a_block_that_pauses_the_job_is_said_once_with_its_probe(kind: FailureKind, message: str) -> None:
    failure = Failure(kind, message)
    words = said(RouteShare(why=f"blocked: {message}", again_at_s=160.0, blocked=failure), failure)
    assert words.startswith(f"{kind}: {message}; it is probed at ")
    assert words.count(message) == 1
    assert said(RouteShare(why=f"blocked: {message}", blocked=failure), failure) == f"{kind}: {message}"


def test_another_reason_stands_beside_the_block() -> None:
    failure = Failure(FailureKind.BLOCKED, "no credit")
    assert said(RouteShare(why="blocked: another", blocked=failure), failure) == "blocked: no credit; blocked: another"


@pytest.mark.parametrize(("told_until_s", "words"), [(0.0, "the pool rests after 429"), (130.0, PROVIDER_ASKS)])
def test_only_a_provider_that_named_a_time_asks_to_wait(told_until_s: float, words: str) -> None:
    assert said(RouteShare(why=PROVIDER_ASKS, told_until_s=told_until_s)) == words
