"""The table of `benchmarks.peers`: a peer that failed has no figure, and every row has what it needs to run."""

import subprocess

import pytest

from benchmarks.peers import environments
from benchmarks.peers.comparison import Table, aims
from benchmarks.peers.known import PEERS
from benchmarks.peers.runs import SCRIPTS, Bench, Failed


def test_every_peer_has_its_environment_and_its_road():
    pins = environments.pins()
    for peer in PEERS.values():
        if peer.environment:
            assert (SCRIPTS / f"{peer.road}.py").exists()
            assert all("==" in pin for pin in pins[peer.environment])
    assert {peer.environment for peer in PEERS.values() if peer.environment} == set(pins)


def test_calls_that_are_all_asked_at_the_beginning_are_no_rate(tmp_path):
    bench = Bench(tmp_path, None, {}, 100, 300)
    with pytest.raises(Failed, match="are no rate"):
        bench.measured(PEERS["dask"], "http", 299)


def test_a_peer_that_fails_once_has_no_figure():
    table = Table([PEERS["inline"], PEERS["dbos"]])
    for rate in (3_000.0, 2_000.0, 1_000.0):
        table.ran(PEERS["inline"], "http", 10, rate, 100.0)
    table.ran(PEERS["dbos"], "http", 10, 100.0, 0.0)
    table.failed(PEERS["dbos"], "http", "it lost a call")
    assert not table.runs(PEERS["dbos"], "http")
    found = table.close()
    assert found["dbos"]["http"] == {"not_run": "it lost a call"}
    assert found["inline"]["http"]["calls_per_s"] == 2_000
    assert aims(found) == {}


def test_an_aim_is_reached_by_the_ratio_alone():
    table = Table([PEERS["inline"], PEERS["dbos"]])
    table.ran(PEERS["inline"], "http", 10, 1_000.0, 0.0)
    table.ran(PEERS["dbos"], "http", 10, 101.0, 0.0)
    (reported,) = aims(table.close()).values()
    assert reported == {"ratios": {"inline": 9.9}, "reached": {"inline": False}}


def test_an_environment_that_cannot_be_made_says_why_in_one_line(monkeypatch, tmp_path):
    def refused(argv, **_):
        raise subprocess.CalledProcessError(1, argv, stderr="WARNING: slow\nERROR: none\nERROR: No such release\n")

    monkeypatch.setenv(environments.FOLDER, str(tmp_path))
    monkeypatch.setattr(environments.subprocess, "run", refused)
    with pytest.raises(environments.NotInstalled, match=r"^ERROR: No such release$"):
        environments.python("dbos")
