"""What holds for every test: the edge is forbidden where it has no business, three run side by side, figures are told.

Everywhere: no key and no setting of the person who runs the tests, and no connection beyond this machine (a
cluster test may speak to its own address). In unit, properties and spec: no ``ray.init``, no sleeping.

``make test`` runs three processes (pytest-xdist): a file's tests stay in one of them, in their order, and so do all that
speak to the cluster's Ray, which mostly wait and leave a core to the others. The longest come first.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import ipaddress
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import hypothesis
import pytest

from actors.providers.registry import PROVIDERS

TESTS = Path(__file__).resolve().parent
STRICT = ("unit", "properties", "spec")
MARKED = ("cluster", "notebook", "e2e")
APART = "e2e"  # collected only where the command names it
LONGEST = ("cluster", "simulation")
FIGURES = "figures"

_SETTINGS = (
    "ANTHROPIC_", "AZURE_OPENAI_", "CORTEX_", "OPENAI_", "OTEL_", "PG",
    *(name for row in PROVIDERS.values() for name in (row.key_variable, row.key_file_variable, row.base_url_variable) if name),
)  # fmt: skip
_ROADS = ("RAY_ADDRESS", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "SSL_CERT_FILE")
_numbers = count()

# The same examples in every run, and no verdict by the clock of a busy machine.
# To search further: pytest --hypothesis-profile explore
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2_000, print_blob=True)
hypothesis.settings.load_profile("steady")


def pytest_configure() -> None:
    """Before the first fixture, so that session fixtures and their processes see a clean environment too. Collection of
    tests creates a million objects and frees none: no garbage is searched meanwhile."""
    gc.disable()
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup: processes of the tests would inherit it
        signal.signal(signal.SIGHUP, lambda *_: None)
    for name in list(os.environ):
        own = name.startswith(_SETTINGS) and name != "CORTEX_STARTED_BY"  # the mark of .ci/nothing_left.py
        if own or name.upper() in _ROADS:
            del os.environ[name]
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """tests/e2e needs tools from outside: whoever wants it says so."""
    apart = TESTS / APART
    if not collection_path.is_relative_to(apart):
        return None
    named = (Path(config.invocation_params.dir, word.partition("::")[0]).resolve() for word in config.args)
    return None if any(path.is_relative_to(apart) for path in named) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test in tests/cluster, tests/notebook or tests/e2e carries that mark; what takes longest begins first."""
    for item in items:
        if (kind := _kind(item.path)) in MARKED:
            item.add_marker(kind)
    items.sort(key=lambda item: _turn(_kind(item.path)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Exempt the modules and tests from garbage collection: some million objects that live to the end, which each full
    collection would visit again, after every few tests."""
    gc.freeze()
    gc.enable()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes that no one can read do not name a test: gzip writes the time into them, and the processes that collect
    the tests side by side must find the same names. pytest numbers those that are alike."""
    if not isinstance(val, bytes) or (val.isascii() and val.decode().isprintable()):
        return None
    return argname


def _turn(kind: str) -> int:
    return LONGEST.index(kind) if kind in LONGEST else len(LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests go to the same of several processes: one file's, and all of tests/cluster, which share a Ray."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "tests/cluster" if file.startswith("tests/cluster/") else file

    config.option.loadscopereorder = False  # by time, not by number of tests
    return ByFile(config, log)


def _kind(path: Path) -> str:
    inside = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    return inside[0] if len(inside) > 1 else ""


@pytest.fixture(autouse=True)
def _bounds(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    kind = _kind(request.path)
    state = tmp_path_factory.getbasetemp() / f"state-{next(_numbers)}"
    monkeypatch.setenv("CORTEX_STATE", str(state))
    if kind != "cluster":
        _forbid_far_sockets(monkeypatch)
    if kind in STRICT:
        _forbid_sleep(monkeypatch)
        _forbid_ray(monkeypatch)
    before = _log_exports()
    yield
    for handler in (left := _log_exports() - before):
        logging.getLogger("cortex").removeHandler(handler)
        handler.close()
    assert not left, "the test did not close its telemetry: later tests would hear of its collector"


def _log_exports() -> set[logging.Handler]:
    """Return the exports of logs that hang on the logger of the whole process."""
    return {each for each in logging.getLogger("cortex").handlers if type(each).__name__ == "OtlpLogHandler"}


# ---------------------------------------------------------------------------------------------- figures


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """For figures that people want to see of a test that passed, too: they stand at the end of the run."""
    return lambda text: request.node.user_properties.append((FIGURES, text))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the tests told."""
    entries = [
        (report.nodeid, text)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, text in report.user_properties
        if name == FIGURES
    ]
    if entries:
        terminalreporter.section(FIGURES)
    for nodeid, text in entries:
        terminalreporter.line(f"{nodeid}\n    " + text.strip().replace("\n", "\n    "))


# ---------------------------------------------------------------------------------------------- sockets


def _near(address: Any) -> bool:
    """An address on this machine: a Unix socket, or a loopback address or name."""
    if not isinstance(address, tuple):
        return True
    host = str(address[0]).partition("%")[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in {"", "localhost"} or host.endswith(".localhost")


def _forbid_far_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = socket.getaddrinfo

    def refuse(address: Any) -> NoReturn:
        # Not an OSError: code under test would take that for a network failure and try again.
        pytest.fail(f"a test asked for {address!r}: only this machine may be spoken to", pytrace=True)

    def guarded(name: str) -> None:
        real = getattr(socket.socket, name)

        def connect(self: socket.socket, address: Any) -> Any:
            return real(self, address) if _near(address) else refuse(address)

        monkeypatch.setattr(socket.socket, name, connect)

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        return lookup(host, *args, **kwargs) if name is None or _near((name,)) else refuse(name)

    guarded("connect")
    guarded("connect_ex")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


# --------------------------------------------------------------------------------------------- sleeping


def _forbid_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = asyncio.sleep

    def no_sleep(seconds: float) -> NoReturn:
        pytest.fail(f"time.sleep({seconds}) in a test that may not wait")

    def awaited(delay: float, result: Any = None) -> Any:
        # Code under test may wait on its event loop; a test that waits for it by sleeping is what is meant.
        # A loop with a virtual clock does not wait at all.
        caller = Path(sys._getframe(1).f_code.co_filename)
        real_time = type(asyncio.get_running_loop()).time is asyncio.BaseEventLoop.time
        if delay > 0 and real_time and caller.is_relative_to(TESTS):
            pytest.fail(f"asyncio.sleep({delay}) in a test that may not wait")
        return sleep(delay, result)

    monkeypatch.setattr(time, "sleep", no_sleep)
    monkeypatch.setattr(asyncio, "sleep", awaited)


# -------------------------------------------------------------------------------------------------- Ray


def _no_ray(*_args: Any, **_kwargs: Any) -> NoReturn:
    pytest.fail("ray.init in a test that may not start Ray; such a test lives in tests/cluster")


def _forbid_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    if "ray" in sys.modules:
        monkeypatch.setattr(sys.modules["ray"], "init", _no_ray)
    else:  # importing Ray takes a second: only a test that imports it itself should wait for that
        monkeypatch.setattr(sys, "meta_path", [_RayDoor(monkeypatch), *sys.meta_path])


class _RayDoor(importlib.abc.MetaPathFinder):
    """Lets a test import Ray, and closes ``ray.init`` as soon as it is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "ray":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def then_close(module: Any) -> None:
                execute(module)
                self.monkeypatch.setattr(module, "init", _no_ray)

            spec.loader.exec_module = then_close  # type: ignore[method-assign]
        return spec


# ------------------------------------------------------------------------------------------- PostgreSQL


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server that does not wait for its disk, one for all tests of a process."""
    from tests.support.postgres_server import serving

    yield from serving()


@pytest.fixture(params=["sqlite", "postgres"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A ``--state`` where nothing is yet: a folder, then a database."""
    if request.param == "sqlite":
        yield str(tmp_path / "state")
    else:
        yield request.getfixturevalue("database")


@pytest.fixture
def database(postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A ``--state`` in the server where nothing is yet."""
    from actors.journal.postgres.connection import close_idle

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    yield postgres.state()
    close_idle()
