"""``cortex limit``: bounds by hand on a route, for the running and the later jobs of a state folder."""

from __future__ import annotations

import getpass
import json
import os
import time
from pathlib import Path

import pytest

from actors import caps
from actors.records import last_terms
from actors.store import Folder, StoreError
from policies.limit import Caps
from tests.cli.commands import requests

SIM = ("--model", "sim")


def _folder() -> Folder:
    return Folder(os.environ["CORTEX_STATE"])


def _job(cortex, job: str, *more: object) -> str:
    """A job that has run, and the pool of its route."""
    requests(Path(f"{job}.jsonl"), 2)
    assert cortex("batch", f"{job}.jsonl", "-o", f"{job}.out", "--job", job, *SIM, *more).code == 0
    terms = last_terms(_folder(), job)
    assert terms is not None
    return caps.pools_of(terms)[0][0]


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
    assert held == {"pool": pool, "concurrency": None, "rpm": 60, "itpm": None, "otpm": None, "headroom": 0.2, "who": who}
    assert cortex("limit", "sim", "--clear").code == 0
    assert "no limit is set by hand" in cortex("limit").err
    assert "nobody" not in cortex("limit", "sim").out


def test_a_route_is_named_by_any_part_that_means_one_alone(cortex):
    one = _job(cortex, "one")
    two = _job(cortex, "two", "--sim", "seed=2")
    cortex("limit", "SIM", "--rpm", 1).refused(f"'SIM' may be {' or '.join(sorted((one, two)))}: give more of it")
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
        (["sim", "--clear", "--rpm", "5"], ["--clear takes all bounds away: leave --rpm out"]),
        (["--rpm", "5"], ["which route?", "cortex limit"]),
        (["--clear"], ["which route?"]),
        (["sim", "--rpm", "5"], ["no route is known in", "when it begins"]),
        (["sim", "--rpm", "5", "--cluster", "127.0.0.1:1"], ["no Ray answers at 127.0.0.1:1"]),
    ],
)
def test_limits_that_make_no_sense(cortex, arguments, words):
    cortex("limit", *arguments).refused(*words)
    assert caps.read(_folder()) == {}


def test_a_damaged_file_is_said(cortex):
    pool = _job(cortex, "one")
    assert cortex("limit", "sim", "--rpm", 5).code == 0
    caps.path_of(_folder()).write_text("{")
    cortex("limit").refused("limits.json", "damaged", "remove it")
    caps.path_of(_folder()).write_text(json.dumps({pool: {"concurrency": 0}}))
    with pytest.raises(StoreError, match="damaged: concurrency must be above 0"):
        caps.read(_folder())


def test_a_driver_hears_all_at_first_and_then_what_has_changed(cortex):
    pool = _job(cortex, "one")
    other = _job(cortex, "two", "--sim", "seed=2")
    terms = last_terms(_folder(), "one")
    assert terms is not None
    five, six = Caps(concurrency=5, who="ann", at_s=1.0), Caps(concurrency=6, who="bob", at_s=2.0)
    gone = Caps(who="bob", at_s=3.0)
    watch = caps.Watch(_folder(), terms)
    assert watch.news() == {}
    caps.put(_folder(), pool, five)
    assert watch.news() == {pool: five}
    assert watch.news() == {}
    caps.put(_folder(), other, five)
    assert watch.news() == {}
    caps.put(_folder(), pool, six)
    caps.put(_folder(), other, six)
    assert watch.news() == {pool: six}
    caps.put(_folder(), pool, gone)
    assert caps.Watch(_folder(), terms).news() == {}
    assert watch.news() == {pool: gone}
    caps.path_of(_folder()).write_text("{")
    assert watch.news() == {}
