"""What a user writes of a job's bounds, as values, on the command line and in Python."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

import cortex as public
from actors.cli.options.options import BOUNDS, RUNNING, Options
from actors.common.units import duration_s, share, time_at_s
from actors.history.catalog import last_terms
from actors.jobs.limit_options import OPTIONS, bounded, changes, in_words
from actors.jobs.option_parsing import fallback, provider
from actors.journal.journal import StateFolder
from actors.routing.routes import ModelSpec, SetupError
from actors.simulator.settings import SimulatorSettings
from cortex.values.limits import Limits
from policies.failures.timeout import attempt_timeout_s
from tests.cli.cli_runner import requests
from tests.cli.test_session import Label

NOW_S = datetime(2026, 11, 22, 12, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("2h", 7_200),
        ("1d", 86_400),
        ("1h30m", 5_400),
        ("250ms", 0.25),
        ("1.5h", 5_400),
        (" 2H ", 7_200),
        ("45", 45),
        (2.5, 2.5),
    ],
)
def test_durations(text, seconds):
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "5 m", "1h30", "m15", "0", "0h", "-5s", "inf", "nan", "1y"])
def test_no_durations(text):
    with pytest.raises(ValueError, match="15m"):
        duration_s(text)


@pytest.mark.parametrize(
    ("text", "at_s"),
    [
        ("+6h", NOW_S + 21_600),
        ("2026-11-22T13:00:00Z", NOW_S + 3_600),
        ("2026-11-22T13:00+01:00", None),
        ("2026-11-23T00:00+12:00", None),
        (datetime(2026, 11, 22, 12, 1, tzinfo=UTC), NOW_S + 60),
        (NOW_S + 5, NOW_S + 5),
        (NOW_S, None),
    ],
)
def test_times(text, at_s):
    if at_s is None:
        with pytest.raises(ValueError, match="has passed"):
            time_at_s(text, NOW_S)
    else:
        assert time_at_s(text, NOW_S) == at_s


def test_shares():
    assert (share("20%"), share("0.05"), share(0.1), share(0), share("100%")) == (0.2, 0.05, 0.1, 0, 1)
    for text in ("1", "100%", "-1%", "x", "nan", "0.5%%"):
        with pytest.raises(ValueError, match="give a share from 0 to below 1"):
            share(text, below_one=True)


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("claude-haiku-4-5", ModelSpec(model="claude-haiku-4-5")),
        ("m@20250101", ModelSpec(model="m@20250101")),
        ("m@https://host/x", ModelSpec(model="m", base_url="https://host/x")),
        ("m@http://h:1,input=3, output=15", ModelSpec(model="m", base_url="http://h:1", price="input=3,output=15")),
        (
            "sim,seed=2,throttled=0.1,input=1,output=1",
            ModelSpec(
                model="sim", price="input=1,output=1", simulated=SimulatorSettings(seed=2, faults={"throttled": 0.1})
            ),
        ),
        ("local", ModelSpec(model="local")),
        ("anthropic.claude-haiku-4-5-20251001-v1:0", ModelSpec(model="anthropic.claude-haiku-4-5-20251001-v1:0")),
        ("anthropic:m", ModelSpec(model="m", provider="anthropic")),
        (
            "bedrock:eu.anthropic.x-v1:0,region=eu-west-1",
            ModelSpec(model="eu.anthropic.x-v1:0", provider="bedrock", region="eu-west-1"),
        ),
        (
            "vertex:m@20251001,region=global,project=p,price-as=n",
            ModelSpec(model="m@20251001", provider="vertex", region="global", project="p", price_as="n"),
        ),
        (
            "foundry:m@https://host/anthropic,input=1,output=2",
            ModelSpec(model="m", provider="foundry", base_url="https://host/anthropic", price="input=1,output=2"),
        ),
        ("m,price-as=deepseek/deepseek-chat", ModelSpec(model="m", price_as="deepseek/deepseek-chat")),
        ("sim,price-as=claude-haiku-4-5", ModelSpec(model="sim", price_as="claude-haiku-4-5")),
    ],
)
def test_fallbacks(text, wish):
    assert fallback(text) == wish


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("Anthropic", {"provider": "anthropic"}),
        ("bedrock, region = eu-west-1", {"provider": "bedrock", "region": "eu-west-1"}),
        ("vertex,project=p,region=global", {"provider": "vertex", "region": "global", "project": "p"}),
        ("foundry,resource=r", {"provider": "foundry", "resource": "r"}),
    ],
)
def test_providers(text, found):
    assert provider(text) == found


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (provider, "nobody", "'nobody' is no provider: write anthropic"),
        (provider, "vertx", "did you mean vertex"),
        (provider, "bedrock,region=a,region=b", "is given twice"),
        (provider, "anthropic,region=a", "anthropic has no region"),
        (fallback, "bedrock:", "names no model"),
        (fallback, "bedrock:local", "local has no provider"),
        (fallback, "sim,region=a", "sim has no provider"),
        (fallback, "bedrock:m,project=p", "bedrock has no project"),
        (fallback, "m,price-as=n,input=1,output=2", "price-as= and a price"),
        (fallback, "m,zone=1", "cannot read 'zone=1'"),
    ],
)
def test_what_is_said_of_a_provider_and_means_nothing(read, text, said):
    with pytest.raises(ValueError, match=said):
        read(text)


def test_every_bound_is_an_option_and_every_option_of_bounds_is_read():
    assert set(OPTIONS) <= set(Options.__struct_fields__) & set(RUNNING)
    assert set(BOUNDS) <= set(OPTIONS)


def test_what_is_not_said_stays_and_none_takes_away():
    before = Limits(max_cost_nusd=5, requests_per_min=10, headroom=0.5, concurrency=7, blocked_wait_s=9)
    facts = dict.fromkeys(OPTIONS) | {"warm_prefix": False}
    assert bounded(before, facts, NOW_S) == before
    after = bounded(before, {"max_cost": "none", "rpm": "NONE", "headroom": "none", "wait_blocked": "none"}, NOW_S)
    assert after == Limits(concurrency=7)
    with pytest.raises(ValueError, match="--concurrency: 'none'"):
        bounded(before, {"concurrency": "none"}, NOW_S)
    assert changes(before, after) == [
        "--max-cost none (was $0.000000005)", "--rpm none (was 10)", "--headroom 0 (was 0.5)",
        "--wait-blocked 0s (was 9s)",
    ]  # fmt: skip
    assert in_words(after) == {"--concurrency": "7"}


def test_many_calls_at_once_need_as_many_rows():
    assert bounded(Limits(), {"concurrency": 5_000}, NOW_S).window_rows == 5_000
    assert bounded(Limits(), {"concurrency": 5}, NOW_S).window_rows == Limits().window_rows


def test_the_command_line_keeps_them_with_the_job(cortex):
    requests(Path("in.jsonl"), 3)
    options = (
        "--rpm", 600, "--itpm", "1e6", "--otpm", 50_000, "--headroom", "20%", "--priority", 2, "--deadline", "+6h",
        "--goal-timeout", "15m", "--timeout", "5m", "--max-failed", "10%", "--warm-prefix", "--hedge", "90s", "--wait-blocked", "2h",
        "--max-cost", 1, "--price", "input=1,output=1", "--fallback", "sim,seed=2,input=1,output=2",
    )  # fmt: skip
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine", *options)
    assert done.code == 0, done.err
    found = last_terms(StateFolder(os.environ["CORTEX_STATE"]), "mine")
    assert found is not None
    limits = found.limits
    assert limits.deadline_at_s is not None
    assert 0 < limits.deadline_at_s - datetime.now(UTC).timestamp() < 21_600
    assert (limits.requests_per_min, limits.input_tokens_per_min, limits.output_tokens_per_min) == (600, 1e6, 50_000)
    assert (limits.headroom, limits.priority, limits.goal_timeout_s, limits.max_failed) == (0.2, 2, 900, 0.1)
    assert (limits.warm_prefix, limits.hedge_after_s, limits.blocked_wait_s) == (True, 90, 7_200)
    assert [attempt_timeout_s(limits.timeout, *sizes) for sizes in ((1, 1), (64_000, 900_000))] == [300, 300]
    assert in_words(limits)["--timeout"] == "300s"
    assert bounded(limits, {"timeout": "none", "hedge": "none"}, NOW_S).timeout == Limits().timeout
    assert [(route.model, route.price.output_usd_per_mtok) for route in found.fallbacks if route.price] == [("sim", 2)]


def test_python_takes_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("CORTEX_STATE", str(tmp_path))
    program = Label(texts=("It has a bug",))
    more = {"model": "sim", "progress": False, "job": "mine"}
    done = public.run(program, **more, fallback="sim,seed=2", rpm=600, deadline="+1h", goal_timeout="15m", timeout=20, max_failed=3)
    assert done.outcome == "complete"
    found = last_terms(StateFolder(tmp_path), "mine")
    assert found is not None
    assert (found.limits.requests_per_min, found.limits.goal_timeout_s, found.limits.max_failed) == (600, 900, 3)
    assert found.limits.timeout.fixed and found.limits.timeout.ceiling_s == 20
    assert [route.model for route in found.fallbacks] == ["sim"]
    for wrong, text in (
        ({"deadline": 1.0}, "--deadline: 1.0 has passed"),
        ({"headroom": 1}, "--headroom: 1: give a share"),
        ({"fallback": ["sim,sed=1"]}, "sim: unknown setting 'sed'"),
    ):
        with pytest.raises(SetupError, match=text):
            public.run(program, **more, **wrong)
    with pytest.raises(SetupError, match="--fallback sim: this route is named twice"):
        public.run(program, **more, fallback="sim", fresh=True)
