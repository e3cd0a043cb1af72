"""A batch over several hosts, none of which sees the others' disks; and a host that the Ray does not let in."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cluster.cluster_processes import names_in, write_rows
from tests.e2e.hosts.multi_host_ray import TOKEN, Ground, Member, ended

ROWS = 600
_number = itertools.count()


def test_a_batch_runs_over_all_hosts_and_its_journal_is_on_one_disk(hosts: Ground) -> None:
    hosts.spread("over-all")
    before = hosts.twice()
    rows = write_rows(hosts.a.disk / "in.jsonl", ROWS, "joined")
    text = ended(hosts.cortex(hosts.a, "batch", "in.jsonl", "-o", "out.jsonl", "--job", "joined"))
    assert "it goes on there without this command" in text
    assert Counter(names_in(hosts.a.disk / "out.jsonl")) == Counter(rows)
    assert hosts.twice() == before
    reported = json.loads(ended(hosts.cortex(hosts.b, "top", "--once", "--json")).splitlines()[-1])
    (cluster,) = reported["clusters"]
    assert len({one["node"] for one in cluster["staff"].values()}) >= 2, "branches live on more than one host"
    assert list((hosts.a.disk / "state").glob("*/joined*")), "its journal is on the disk of its driver"
    assert not list((hosts.b.disk / "state").glob("*/joined*")) and not list(
        (hosts.head.disk / "state").glob("*/joined*")
    )


@pytest.fixture
def stranger(hosts: Ground) -> Iterator[Member]:
    """A host without a node of the Ray."""
    found = Member(hosts.net, f"guest{next(_number)}")
    write_rows(found.disk / "in.jsonl", 3, "stranger")
    yield found
    found.lose()


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({}, "asks for a token: set RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_MODE": "token"}, "RAY_AUTH_MODE=token, but there is no token"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}, "refuses the token"),
        (
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN},
            "no node of the Ray at 10.77.0.1:6379 runs on this machine",
        ),
    ],
)
def test_a_client_that_is_not_let_in_hears_why_in_one_line(
    hosts: Ground, stranger: Member, environ: dict[str, str], why: str
) -> None:
    before = hosts.stats()["requests"]
    text = ended(hosts.cortex(stranger, "batch", "in.jsonl", "-o", "out.jsonl", **environ), code=2)
    assert why in text and len(text.strip().splitlines()) == 1, text
    assert hosts.stats()["requests"] == before, "nothing was spent"
