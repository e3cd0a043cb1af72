"""One set of hosts for all tests here, as long as they pass: to start a Ray over three of them takes ten seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator

import pytest

from tests.e2e.hosts.database import Database
from tests.e2e.hosts.multi_host_ray import ROCKSDB, Ground, ground

_FAILED = pytest.StashKey[bool]()


class _Kept:
    """Hosts that are made when a test asks for them, and anew after a test that failed: it may have left anything."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._ground: Ground | None = None
        self._database: Database | None = None

    def ground(self) -> Ground:
        if self._ground is None:
            self._ground = self._stack.enter_context(ground())
            self._ground.answers(latency_ms=150.0)
            self._ground.rays(**ROCKSDB)
        return self._ground

    def database(self) -> Database:
        """It goes with its network."""
        found = self.ground()
        if self._database is None:
            self._database = Database(found.net)
            self._database.tell(found.head, found.a, found.b)
        return self._database

    def told(self) -> str:
        """What the hosts' processes said last."""
        found = self._ground
        members = () if found is None else (found.head, found.a, found.b)
        return "\n".join(f"-- host {each.name}\n{each.logs()}" for each in members)

    def end(self) -> None:
        self._ground = self._database = None
        self._stack.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that a test failed, for the fixtures that end after it."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture(scope="package")
def kept() -> Iterator[_Kept]:
    """Nothing of it is left when the tests of this folder are through: those that follow have the machine to themselves."""
    found = _Kept()
    yield found
    found.end()


@pytest.fixture
def hosts(kept: _Kept, request: pytest.FixtureRequest) -> Iterator[Ground]:
    """Hosts ``head``, ``a`` and ``b`` with a Ray over them that asks for a token and keeps on disk what its head knows,
    and a provider. Each test leaves them as it found them; one that fails leaves none."""
    try:
        yield kept.ground()
    finally:
        if request.node.stash.get(_FAILED, False):
            print(kept.told())
            kept.end()


@pytest.fixture
def database(kept: _Kept, hosts: Ground) -> Database:
    """A PostgreSQL away from all hosts of the Ray, each of which knows its password."""
    return kept.database()
