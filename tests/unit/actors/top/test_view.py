"""What ``top`` shows of what was seen: rows and curves from facts."""

from __future__ import annotations

import pytest

from actors.top.layout import TopTable, columns_shown
from actors.top.text_output import lines
from actors.top.view import screen
from policies.limits.limit import PoolCaps
from tests.support.dashboard_samples import NODE, NOW_S, ROUTE, cluster, job, seen


def _table(shown, name: str) -> TopTable:
    return next(table for table in shown.tables if table.name == name)


def _cells(shown, name: str, place: int = 0) -> dict[str, str]:
    table = _table(shown, name)
    return {column.title: text for column, text in zip(table.columns, table.rows[place].cells, strict=True)}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            job(results=250, rate_per_s=12.345, left_s=61.0, unit="rows", known_nusd=250_000_000, cost_usd=0.25, in_flight=7, permits=9),
            {"STATE": "running", "DONE": "250/1,000", "%": "25%", "RATE/S": "12.3", "LEFT": "1m01s", "COST": "$0.25/$5",
             "IN FLIGHT": "7", "PERMITS": "9", "SEEN": "live", "WAITS": ""},
        ),
        (job(waits="the breaker is open"), {"WAITS": "the breaker is open"}),
        (job(rate_per_s=None, left_s=None), {"RATE/S": "-", "LEFT": "-"}),
        (job(rate_per_s=0.0, left_s=None), {"RATE/S": "0", "LEFT": ""}),
        (job(age_s=75.0), {"SEEN": "live 1m15s"}),
        (
            job(outcome="partial", source="journal", why="over_budget: x", age_s=7200.0),
            {"STATE": "partial", "RATE/S": "", "IN FLIGHT": "", "SEEN": "journal 2h00m", "WAITS": "over_budget: x"},
        ),
        (job(outcome="partial", why="drain: by ann"), {"WAITS": "drained by ann"}),
        (job(outcome="complete", results=1000, cost_usd=None), {"%": "100%", "COST": ""}),
        (job(rows_expected=0, calls=33), {"DONE": "33", "%": ""}),
        (job(rows_failed=4), {"FAILED": "4"}),
    ],
)  # fmt: skip
def test_a_job(made, expected):
    cells = _cells(screen(seen(made)), "jobs")
    assert {name: cells[name] for name in expected} == expected


def test_on_eighty_columns_failed_rows_are_among_what_is_shown():
    wide = job(
        job="batch-requests-e7d54c5f", results=18_080, rows_expected=19_998, rate_per_s=250.0, left_s=5.0, unit="rows"
    )
    table = _table(screen(seen(wide)), "jobs")
    assert "FAILED" in {table.columns[place].title for place, _ in columns_shown(table, 78)}


def test_a_job_that_is_still_to_be_read_or_cannot_be():
    unread = job()
    unread = type(unread)(job="new", facts={}, source="journal", as_of_s=NOW_S)
    bad = type(unread)(
        job="bad", facts={"job": "bad", "outcome": "unreadable", "why": "damaged"}, source="journal", as_of_s=NOW_S
    )
    shown = screen(seen(unread, bad))
    assert {row.cells[0]: (row.cells[1], row.cells[-1]) for row in _table(shown, "jobs").rows} == {
        "new": ("…", "still to be read"), "bad": ("unreadable", "damaged"),
    }  # fmt: skip
    assert all(row.details for row in _table(shown, "jobs").rows)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("latest", ["run", "new", "old"]),
        ("name", ["run", "new", "old"]),
        ("cost", ["run", "old", "new"]),
        ("failed", ["run", "old", "new"]),
    ],
)
def test_those_that_run_come_first_then_as_wanted(sort, order):
    old = job("old", "complete", "journal", 900.0, known_nusd=5, rows_failed=3)
    new = job("new", "failed", "journal", 90.0, known_nusd=1)
    assert [row.key for row in _table(screen(seen(old, new, job("run")), sort=sort), "jobs").rows] == order


def test_a_route_that_is_well():
    shown = screen(seen(job(), clusters=(cluster(),)))
    cells = _cells(shown, "routes")
    assert cells == {
        "ROUTE": "claude-haiku-4-5 at api.anthropic.com", "BREAKER": "closed", "LIMIT": "50", "IN FLIGHT": "12",
        "GRANTED": "30", "WANTED": "100", "RATE/S": "0.6", "FAILED": "20%", "P50 MS/TOK": "21.3", "P95": "500", "WHY": "",
        "SEEN IN": "process 7 on here, inline",
    }  # fmt: skip
    (row,) = _table(shown, "routes").rows
    assert row.level == ""
    found = {curve.label: (curve.values, curve.now) for curve in shown.curves[row.key]}
    assert found["begun"] == ((0, 4, 6), "6/s")
    assert found["failed"] == ((0, 1, 1), "1/s")
    assert found["p50 ms/token"] == ((0.0, 0.02, 0.03), "21.3 ms")


def test_an_open_breaker_says_why_and_when_it_is_probed():
    opened = {"state": "open", "until_s": NOW_S + 12, "why": "8 of 10 failed"}
    shown = screen(seen(clusters=(cluster(breaker=opened),)))
    cells = _cells(shown, "routes")
    assert (cells["BREAKER"], cells["WHY"]) == ("open, probed in 12s", "8 of 10 failed")
    (row,) = _table(shown, "routes").rows
    assert row.level == "bad"
    assert row.about.endswith("breaker open, probed in 12s, 8 of 10 failed")
    assert dict(row.details)["route"] == ROUTE


def test_who_bounded_a_pool():
    caps = PoolCaps(concurrency=20, requests_per_min=600.0, who="ann", at_s=NOW_S - 60)
    assert _cells(screen(seen(clusters=(cluster(caps=caps),))), "routes")["WHY"] == "concurrency 20, rpm 600 by ann"


def test_who_drained_a_node_and_what_became_of_its_branches():
    shown = screen(seen(job(), clusters=(cluster(drained_by="ann"),)))
    node = _cells(shown, "nodes")
    assert (node["NODE"], node["STATE"], node["DRAINED BY"], node["BRANCHES"]) == (
        "abababababab…",
        "drained",
        "ann",
        "2",
    )
    branch = _cells(shown, "actors", 1)
    assert (branch["STATE"], branch["DRAINED BY"]) == ("draining", "ann")
    assert {row.level for row in _table(shown, "actors").rows[:2]} == {"warn"}


def test_a_lost_node_has_a_row_that_says_when():
    shown = cluster()
    shown.status["lost"] = {"ef" * 28: {"host": "pod-7", "at_s": NOW_S - 60}}
    rows = _table(screen(seen(job(), clusters=(shown,))), "nodes").rows
    assert [row.level for row in rows] == ["", "bad"]
    assert rows[1].cells[:2] == ("pod-7", "lost")
    assert rows[1].cells[6].endswith(", 1m00s ago")


def test_a_node_is_shown_by_the_name_of_its_pod_and_told_by_its_id_where_a_host_has_several():
    pod, other = "cortex-branch-worker-x7k2p", "cd" * 28
    one = {"alive": True, "drained_by": "", "host": pod}
    for nodes, shown_as in (({NODE: one}, pod), ({NODE: one, other: one}, f"{pod} (abababababab…)")):
        shown = screen(seen(job(), clusters=(cluster(nodes=nodes),)))
        assert (_cells(shown, "nodes")["NODE"], _cells(shown, "actors")["NODE"]) == (shown_as, shown_as)
        for table in ("nodes", "actors"):
            details = dict(_table(shown, table).rows[0].details)
            assert (details["node"], details["host"]) == (NODE, pod)


def test_a_channel():
    cells = _cells(screen(seen(job(in_flight=11), clusters=(cluster(),))), "actors", 2)
    assert cells["ACTOR"] == "channel:j"
    assert (cells["PHASE"], cells["IN FLIGHT"], cells["PERMITS"], cells["DEATHS"]) == ("epoch 2", "11", "30", "1")


def test_two_processes_with_the_same_names_are_two_rows():
    shown = screen(seen(clusters=(cluster(), cluster("process 8 on here, inline", "cortex.2", age_s=30))))
    keys = [row.key for table in shown.tables for row in table.rows]
    assert len(keys) == len(set(keys)) == 10
    assert _cells(shown, "nodes", 1)["SEEN IN"] == "process 8 on here, inline, 30s ago"


@pytest.mark.parametrize("width", [20, 40, 80, 160, 300])
def test_one_screen_as_text(width):
    texts = lines(screen(seen(job(waits="x" * 200), clusters=(cluster(),)), "head:6379"), width)
    assert all(len(line) <= width for line in texts)
    assert texts[0].startswith("cortex top  ")
    assert width < 160 or texts[0].endswith("1 job, 1 running  cluster head:6379, /state")
    ascii_ = "\n".join(lines(screen(seen(job(), clusters=(cluster(),))), 80, ascii_only=True)).replace("…", "")
    assert ascii_.isascii()


def test_nothing_to_see():
    texts = lines(screen(seen()), 80)
    assert texts[0].endswith("0 jobs, 0 running  /state")
    assert texts[-1] == "no jobs yet"


def test_trouble_is_said():
    assert "does not answer" in lines(screen(seen(trouble="the cortex of x does not answer now")), 80)[1]
