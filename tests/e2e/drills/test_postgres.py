"""A database that is stopped, and one that stands still, under a job: what `cortex status` says, and that the job goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.cluster.orphan_cleanup import below
from actors.journal.postgres import connection
from tests.cli.cli_runner import Done, cortex, until
from tests.e2e.drills.ground import Ground, ground
from tests.support.postgres_server import Server, serving

__all__ = ["cortex"]
pytestmark = pytest.mark.long
LAG = "cortex_journal_lag_seconds"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that a drill may stop."""
    for found in serving():
        monkeypatch.setenv("CORTEX_STATE", found.address())
        yield found
    connection.close_idle()


@pytest.fixture
def place(server: Server, tmp_path: Path, cortex: Callable[..., Done]) -> Iterator[Ground]:
    with ground(tmp_path, cortex, "latency_ms=100", "latency_spread=0") as found:
        yield found


def _waits_and_goes_on(
    place: Ground, away: Callable[[], object], back: Callable[[], object], promtool: str
) -> None:  # fmt: skip
    """Check that an operator is told while a database is away, and that the job goes on when it is back."""
    place.begin(20_000, "--concurrency", 8)
    place.quiet()
    away()
    try:
        place.drill("PostgreSQL away", drifts=(LAG,))
    finally:
        back()
    before = place.done()
    place.goes_on(before + 20, 30)
    # Its hold on the job, a lock of the session, comes back.
    until(lambda: place.status()["state"].startswith("running"))
    place.judge(promtool, minutes=4)  # for a minute the lag is that of the outage, which repeated for longer would be none



def test_a_database_that_is_stopped(server: Server, place: Ground, promtool: str) -> None:
    _waits_and_goes_on(place, lambda: server.stop("immediate"), server.start, promtool)
    told = [(line["event"], line["level"]) for line in place.lines() if line["logger"] == "cortex.channel"]
    assert told == [("job.waits", "warning"), ("job.goes_on", "warning")]


@pytest.mark.release
def test_a_database_that_stands_still(server: Server, place: Ground, promtool: str) -> None:
    """As behind a disk that hangs: it takes connections, and answers none of them."""
    first = int((server.data / "postmaster.pid").read_text().split()[0])

    def each(number: signal.Signals) -> None:
        for pid in [first, *(pid for pid, _ in below(first))]:
            os.kill(pid, number)

    _waits_and_goes_on(place, lambda: each(signal.SIGSTOP), lambda: each(signal.SIGCONT), promtool)
