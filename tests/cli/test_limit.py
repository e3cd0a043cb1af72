"""``cortex limit``: bounds by hand on a route, for the running and the later jobs of a state folder."""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
import time
from pathlib import Path

import msgspec
import pytest

from actors.cli.control import limit
from actors.history.catalog import last_terms
from actors.journal.journal import StateFolder, StoreError
from actors.limits import forgotten, overrides
from cortex.scheduler.pools import learned_in
from cortex.state import events
from policies.limits.limit import PoolCaps
from tests.cli.cli_runner import each_once, ended, environment, requests, started, until
from tests.support.patience import PATIENCE_S

SIM = ("--model", "sim")


def _folder() -> StateFolder:
    return StateFolder(os.environ["CORTEX_STATE"])


def _job(cortex, job: str, *more: object) -> str:
    """A job that has run, and the pool of its route."""
    requests(Path(f"{job}.jsonl"), 2)
    assert cortex("batch", f"{job}.jsonl", "-o", f"{job}.out", "--job", job, *SIM, *more).code == 0
    terms = last_terms(_folder(), job)
    assert terms is not None
    return overrides.pools_of(terms)[0][0]


def test_a_limit_is_set_listed_changed_and_cleared(cortex):
    pool = _job(cortex, "one")
    who = getpass.getuser()
    assert cortex("limit").said() == [f"no limit is set by hand in {_folder().path}; known: {pool}"]
    done = cortex("limit", "sim", "--concurrency", 5, "--headroom", "20%")
    assert done.code == 0
    assert done.said() == [
        f"{pool}: --concurrency 5 (was none), --headroom 0.2 (was 0), set by {who}, for all jobs of {_folder().path}, "
        "running and to come"
    ]
    assert cortex("limit", pool, "--rpm", 60, "--concurrency", "none").code == 0
    (line,) = cortex("limit").out.splitlines()
    assert line.startswith(f"{pool}  --rpm 60, --headroom 0.2  by {who}, since 20")
    found = json.loads(cortex("limit", "--json").out)
    assert found["known"] == [pool]
    (held,) = found["limits"]
    assert time.time() - held.pop("at_s") < 60
    assert held == {
        "pool": pool,
        "concurrency": None,
        "rpm": 60,
        "itpm": None,
        "otpm": None,
        "headroom": 0.2,
        "who": who,
    }
    assert cortex("limit", "sim", "--clear").code == 0
    assert "no limit is set by hand" in cortex("limit").err
    assert "no limit was set" not in cortex("limit", "sim").out


@pytest.mark.long
def test_what_was_learned_is_listed_told_by_status_and_forgotten(cortex):
    """A provider that tells nothing but the 429, of 300 requests a minute and one second of burst."""
    requests(Path("in.jsonl"), 2_000)
    began_s = time.time()
    with started("simulate", "--port", 0, "-s", "rpm=300", "-s", "burst_s=1", "-s", "limits_told=nothing") as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        command = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--base-url", url, "--model", "m")
        with started(*command, env=environment(CORTEX_SERVER_KEY="any")) as child:
            told = r"paced at [\d.]+/s since \d\d:\d\d:\d\d, after 429"
            until(lambda: re.search(told, cortex("status", "mine").out) is not None)
            (line,) = cortex("limit", url).out.splitlines()[-1:]
            pool, _, words = line.partition("  learned: ")
            assert pool.startswith(f"{url}|")
            assert re.fullmatch(r"[\d.,]+ (requests/s|calls at once) after 429, since 20\d\d-.*", words)
            (found,) = json.loads(cortex("limit", "--json").out)["learned"]
            assert (found["pool"], found["source"]) == (pool, "429") and began_s < found["at_s"] <= time.time()
            epoch = len(_granted("mine"))
            done = cortex("limit", url, "--forget")
            assert done.code == 0
            assert re.fullmatch(
                rf"{re.escape(pool)}: dropped what was learned: .* after 429, since .*; for all jobs of .*, running and to "
                "be resumed", done.said()[0],
            )  # fmt: skip
            until(lambda: any(not learned_in(each.memo) for each in _granted("mine")[epoch:] if each.memo))
            child.send_signal(signal.SIGINT)
            assert child.wait(PATIENCE_S) in (0, 130)
        assert cortex("limit", url, "--forget").code == 0
        assert "learned" not in cortex("limit").out
        again = [*command[:-4], "--base-url", url, "--model", "m"]
        began = len(_granted("mine"))
        with started(*again, env=environment(CORTEX_SERVER_KEY="any")) as child:
            until(lambda: any(each.memo for each in _granted("mine")[began:]))
            first = next(each for each in _granted("mine")[began:] if each.memo)
            assert learned_in(first.memo) == (), "the job that is resumed begins anew"
            child.send_signal(signal.SIGINT)
            child.wait(PATIENCE_S)


def test_what_is_asked_of_forget_alone(cortex):
    cortex("limit", "--forget").refused("no route given")
    cortex("limit", "sim", "--forget", "--clear").refused("--forget drops what was learned: give --clear in another")
    cortex("limit", "sim", "--forget", "--rpm", 5).refused("give --rpm in another command")
    cortex("limit", "sim", "--forget").refused("no route is known in")
    pool = _job(cortex, "one")
    assert cortex("limit", "sim", "--forget").said() == [
        f"{pool}: nothing was learned; for all jobs of {_folder().path}, running and to be resumed"
    ]
    _folder().put_note("forgotten", "", b"{")
    cortex("limit", "sim", "--forget").refused("forgotten.json", "damaged", "remove it")


def test_a_driver_hears_what_is_to_be_forgotten_from_its_start_on(cortex):
    pool = _job(cortex, "one")
    terms = last_terms(_folder(), "one")
    assert terms is not None
    orders = [forgotten.Forgotten(who="ann", at_s=at_s) for at_s in (9.0, 11.0, 12.0)]
    forgotten.put(_folder(), pool, orders[0])
    forgotten.put(_folder(), "another|pool|m", orders[1])
    watch = forgotten.ForgottenWatch(_folder(), terms, 10.0)
    assert watch.news() == {}
    for order in orders[1:]:
        forgotten.put(_folder(), pool, order)
        assert watch.news() == {pool: order}
        assert watch.news() == {}
    watch.missed(pool, orders[2])
    assert watch.news() == {pool: orders[2]}
    assert forgotten.times(_folder().address) == {pool: 12.0, "another|pool|m": 11.0}


def test_a_route_is_named_by_any_part_that_means_one_alone(cortex):
    one = _job(cortex, "one")
    two = _job(cortex, "two", "--sim", "seed=2")
    cortex("limit", "SIM", "--rpm", 1).refused(f"'SIM' may be {' or '.join(sorted((one, two)))}: give more of the name")
    for text in (one, one.partition("|")[0], one.partition("|")[0].upper()):
        assert cortex("limit", text, "--rpm", 1).code == 0
        assert cortex("limit", text, "--clear").code == 0
    cortex("limit", "opus", "--rpm", 1).refused("no route 'opus' is known", one, two)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sim", "--rpm", "0"], ["--rpm: '0'"]),
        (["sim", "--itpm", "many"], ["--itpm: 'many'"]),
        (["sim", "--headroom", "1"], ["--headroom: '1'", "below 1"]),
        (["sim", "--concurrency", "0"], ["--concurrency"]),
        (["sim", "--clear", "--rpm", "5"], ["--clear removes all limits: leave --rpm out"]),
        (["--rpm", "5"], ["no route given", "cortex limit"]),
        (["--clear"], ["no route given"]),
        (["sim", "--rpm", "5"], ["no route is known in", "when it begins"]),
        (["sim", "--rpm", "5", "--cluster", "127.0.0.1:1"], ["no Ray answers at 127.0.0.1:1"]),
    ],
)
def test_limits_that_make_no_sense(cortex, arguments, words):
    cortex("limit", *arguments).refused(*words)
    assert overrides.read(_folder()) == {}


def test_a_damaged_file_is_said_and_no_job_begins_without_its_limits(cortex):
    pool = _job(cortex, "one")
    assert cortex("limit", "sim", "--rpm", 5).code == 0
    _folder().put_note("limits", "", b"{")
    cortex("limit").refused("limits.json", "damaged", "remove it")
    requests(Path("two.jsonl"), 2)
    cortex("batch", "two.jsonl", "-o", "two.out", "--job", "two", *SIM).refused("limits.json", "damaged")
    _folder().put_note("limits", "", json.dumps({pool: {"concurrency": 0}}).encode())
    with pytest.raises(StoreError, match="damaged: concurrency must be above 0"):
        overrides.read(_folder())


def test_a_driver_hears_all_at_first_and_then_what_has_changed(cortex):
    pool = _job(cortex, "one")
    other = _job(cortex, "two", "--sim", "seed=2")
    terms = last_terms(_folder(), "one")
    assert terms is not None
    five, six = PoolCaps(concurrency=5, who="ann", at_s=1.0), PoolCaps(concurrency=6, who="bob", at_s=2.0)
    gone = PoolCaps(who="bob", at_s=3.0)
    watch = overrides.OverrideWatch(_folder(), terms)
    assert watch.news() == {}
    overrides.put(_folder(), pool, five)
    assert watch.news() == {pool: five}
    assert watch.news() == {}
    overrides.put(_folder(), other, five)
    assert watch.news() == {}
    overrides.put(_folder(), pool, six)
    overrides.put(_folder(), other, six)
    assert watch.news() == {pool: six}
    overrides.put(_folder(), pool, gone)
    assert overrides.OverrideWatch(_folder(), terms).news() == {}
    assert watch.news() == {pool: gone}
    watch.missed(pool)
    assert watch.news() == {pool: gone}
    _folder().put_note("limits", "", b"{")
    assert watch.news() == {}


def test_a_fallback_that_is_narrow_stays_so_whatever_anybody_says(cortex):
    pool = _job(cortex, "one")
    terms = last_terms(_folder(), "one")
    assert terms is not None
    watch = overrides.OverrideWatch(_folder(), terms, {pool: 16})
    assert watch.news() == {pool: PoolCaps(concurrency=16, who="the model itself")}
    assert watch.news() == {}
    overrides.put(_folder(), pool, PoolCaps(concurrency=50, requests_per_min=5, who="ann", at_s=1.0))
    assert watch.news() == {pool: PoolCaps(concurrency=16, requests_per_min=5, who="ann", at_s=1.0)}
    overrides.put(_folder(), pool, PoolCaps(concurrency=4, who="ann", at_s=2.0))
    assert watch.news() == {pool: PoolCaps(concurrency=4, who="ann", at_s=2.0)}


class _Cortex:
    """The cortex of a cluster, as far as it is asked here."""

    def __init__(self, caps_of_sonnet: PoolCaps) -> None:
        self.pools = {"https://host|k|sonnet": {"caps": msgspec.structs.asdict(caps_of_sonnet), "limit": 20}}
        self.told: list[tuple[str, tuple[object, ...]]] = []

    async def ask(self, method: str, *args: object) -> object:
        if method == "status":
            return {"pools": self.pools, "nodes": {}}
        self.told.append((method, args))
        if args[1] == "branch:9":
            raise ValueError("no branch:9 is known; there are branch:0, branch:1")
        return None


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> _Cortex:
    """A cluster's cortex, without a cluster."""
    found = _Cortex(PoolCaps(concurrency=9, who="bob", at_s=5.0))

    class Runtime:
        def peer(self, name: str) -> _Cortex:
            assert name == "cortex"
            return found

        async def close(self) -> None: ...

    async def start_runtime(cluster: str, environ: object) -> Runtime:
        assert cluster == "head:6379"
        return Runtime()

    monkeypatch.setattr("actors.runtime.ray_runtime.start_runtime", start_runtime)
    return found


def test_a_cluster_keeps_its_own_limits(cortex, there, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    (line,) = cortex("limit").out.splitlines()
    assert line.startswith("https://host|k|sonnet  --concurrency 9  by bob, since 1970")
    done = cortex("limit", "sonnet", "--rpm", 100)
    assert done.said() == [
        f"https://host|k|sonnet: --rpm 100 (was none), set by {getpass.getuser()}, for all jobs of head:6379, "
        "running and to come"
    ]
    ((method, (who, pool, blob)),) = there.told
    assert (method, who, pool) == ("cap", getpass.getuser(), "https://host|k|sonnet")
    caps = msgspec.msgpack.decode(blob, type=PoolCaps)
    assert (caps.concurrency, caps.requests_per_min, caps.who) == (9, 100, who)
    assert overrides.read(_folder()) == {}
    there.told.clear()
    done = cortex("limit", "sonnet", "--forget")
    assert there.told == [("forget", (getpass.getuser(), "https://host|k|sonnet"))]
    assert done.said() == [
        "https://host|k|sonnet: nothing was learned; for all jobs of head:6379, running and to be resumed"
    ]
    there.pools["https://host|k|sonnet"]["learned"] = [
        {"source": "429", "unit": "requests/s", "amount": 0.4, "age_s": 60.0}
    ]
    (_, line) = cortex("limit").out.splitlines()
    assert line.startswith("https://host|k|sonnet  learned: 0.4 requests/s after 429, since 20")
    assert "dropped what was learned: 0.4 requests/s after 429" in cortex("limit", "sonnet", "--forget").err
    cortex("limit", "opus", "--rpm", 1).refused("no route 'opus' is known in head:6379; known: https://host|k|sonnet")


def test_a_node_or_a_branch_of_a_cluster_is_drained(cortex, there):
    for flag, name in (("--branch", "branch:0"), ("--node", "10.0.0.2")):
        done = cortex("drain", flag, name, "--cluster", "head:6379")
        assert (done.code, done.said()) == (
            0, [f"{name} of head:6379 drains: calls in flight are finished, no new ones begin"],
        )  # fmt: skip
    assert there.told == [("drain", (getpass.getuser(), "branch:0")), ("drain", (getpass.getuser(), "10.0.0.2"))]
    cortex("drain", "--branch", "branch:9", "--cluster", "head:6379").refused("no branch:9 is known; there are")


def _granted(job: str) -> list[events.PermitsGranted]:
    source = _folder().journal(job)
    try:
        batches = [batch for _, turn in source.turns() for batch in turn.batches]
        return [event for batch in batches for event in batch if isinstance(event, events.PermitsGranted)]
    finally:
        source.close()


def test_a_limit_holds_for_a_running_job_and_for_a_later_one(cortex):
    requests(Path("in.jsonl"), 2_000)
    slow = (*SIM, "--sim", "latency_ms=300", "--sim", "latency_spread=0")
    with started("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", *slow) as child:
        until(lambda: Path("out.jsonl").exists() and Path("out.jsonl").stat().st_size > 0)
        assert max(each.permits for each in _granted("mine")) > 3
        assert cortex("limit", "sim", "--concurrency", 3).code == 0
        until(lambda: _granted("mine")[-1].permits <= 3)
        shown = cortex("status", "mine", "--json").last
        assert f"{getpass.getuser()} capped this pool at 3 calls at once" in shown["waits"]
        before = len(_granted("mine"))
        assert cortex("limit", "sim", "--clear").code == 0
        until(lambda: any(each.permits > 3 for each in _granted("mine")[before:]))
        assert ended(child).code == 0
    each_once(Path("out.jsonl"), 2_000)
    assert cortex("limit", "sim", "--concurrency", 2).code == 0
    requests(Path("two.jsonl"), 10)
    assert cortex("batch", "two.jsonl", "-o", "two.out", "--job", "two", *SIM, "--fresh").code == 0
    assert max(each.permits for each in _granted("two")) == 2


@pytest.mark.parametrize(("names", "text"), [("ba", "a, b"), ("edcba", "a, b, c, d, e"), ("gfedcba", "a, b, c, d, e and 2 more (--json lists them all)")])
def test_a_line_names_five_pools_at_most(names, text):
    assert limit._some(names) == text
