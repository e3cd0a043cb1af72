"""What the doctor finds where the wrong thing is real: a server that refuses, a proxy, a certificate, a clock, a disk.

No key, header or password of a proxy is in anything that it says.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
import sqlite3
import ssl
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from email.utils import formatdate
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import trustme
from packaging.requirements import Requirement

from actors.cli.admin.doctor import _secrets
from actors.cluster.node_inventory import NodeReport
from actors.doctor import collector, machine, nodes, packages, provider, state_folder
from actors.doctor.checks import Check, DoctorOptions, Finding, examine, ok
from actors.journal.sqlite import checks
from cortex import __version__
from tests.edge.support.scripted_http_server import http, scripted, tunnel
from tests.support.patience import PATIENCE_S

KEY = "sk-ant-api03-verysecretkey-0123456789"
PASSWORD = "letmein-secretpassword"
MODELS = {"data": [{"id": "claude-test", "type": "model"}], "has_more": False}
COUNTED = {"input_tokens": 8}


def asked(environ: dict[str, str] | None = None, **more: Any) -> DoctorOptions:
    return DoctorOptions(environ={"ANTHROPIC_API_KEY": KEY, **(environ or {})}, **{"timeout_s": PATIENCE_S, **more})


async def found(check: Check, what: DoctorOptions) -> dict[str, Finding]:
    """What it finds, by the names of the checks; nothing of it shows a secret."""
    entries = await asyncio.to_thread(examine, [("check", check)], what, _secrets(what), 2 * PATIENCE_S)
    for finding in entries:
        assert KEY not in repr(finding) and PASSWORD not in repr(finding), finding
        assert (finding.state == "ok") == (not finding.do), finding
    return {finding.check: finding for finding in entries}


def served(answer: Any) -> Any:
    """A script: the same answer to everything, or by path."""
    return lambda one: answer[one.target.partition("?")[0]] if isinstance(answer, dict) else answer


# -- the provider ----------------------------------------------------------------------------------------------------


async def test_a_good_key_a_known_model_and_a_clock_that_agrees():
    answers = {
        "/v1/models": http(MODELS, date=formatdate(usegmt=True)), "/v1/messages/count_tokens": http(COUNTED),
        "/metrics": http(b"", 404),
    }  # fmt: skip
    async with scripted(served(answers)) as server:
        facts = await found(provider.connection_findings, asked(base_url=server.url, model="claude-sonnet-4-5"))
    assert {name: each.state for name, each in facts.items()} == {
        "key": "ok", "certificates": "ok", "proxy": "ok", "endpoint": "ok", "clock": "ok", "account": "ok", "model": "ok",
        "metrics": "ok",
    }  # fmt: skip
    assert [(each.method, each.body) for each in server.asked if each.target == "/v1/messages"] == [("POST", b"{}")]
    asked_for = [(each.method, each.target.partition("?")[0]) for each in server.asked if each.target != "/v1/messages"]
    assert asked_for == [("GET", "/v1/models"), ("POST", "/v1/messages/count_tokens"), ("GET", "/metrics")]  # all are free
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (
            401,
            {"type": "authentication_error", "message": f"invalid x-api-key {KEY}"},
            "the key is missing, or the provider does not know it",
        ),
        (403, {"type": "permission_error", "message": "no"}, "may not do this"),
        (402, {"type": "billing_error", "message": "no credit"}, "the account has no credit"),
        (400, {"type": "invalid_request_error", "message": "Your credit balance is too low"}, "blocked"),
        (302, {}, "redirect"),
        (500, {}, "transient"),
    ],
)
async def test_what_the_account_is_refused(status: int, error: dict[str, str], words: str):
    async with scripted(served(http({"type": "error", "error": error}, status, location="https://else/"))) as server:
        facts = await found(provider.connection_findings, asked(base_url=server.url))
    assert facts["account"].state == "wrong" and words in facts["account"].message


async def test_an_endpoint_without_a_free_call_is_a_warning_and_a_paid_call_is_made_only_when_asked_for():
    gone = http({"error": {"message": "no such path"}}, 404)
    message = http({"error": {"type": "billing_error", "message": "no credit"}}, 402)
    answers = {"/v1/models": gone, "/v1/messages/count_tokens": gone, "/v1/messages": message}
    async with scripted(served(answers)) as server:
        facts = await found(provider.connection_findings, asked(base_url=server.url, model="m"))
        assert (facts["account"].state, facts["model"].state, "credit" in facts) == ("warning", "warning", False)
        assert {each.body for each in server.asked if each.target == "/v1/messages"} == {b"{}"}  # which none answers
        facts = await found(provider.connection_findings, asked(base_url=server.url, model="m", paid=True))
    assert facts["credit"].state == "wrong" and "no credit" in facts["credit"].message


async def test_a_model_that_is_not_there():
    unknown = http({"type": "error", "error": {"type": "not_found_error", "message": "model: nosuch"}}, 404)
    async with scripted(served({"/v1/models": http(MODELS), "/v1/messages/count_tokens": unknown})) as server:
        facts = await found(provider.connection_findings, asked(base_url=server.url, model="nosuch"))
    assert facts["model"].state == "wrong" and "nosuch" in facts["model"].message


@pytest.mark.parametrize(
    ("skew_s", "state"), [(0, "ok"), (-60, "warning"), (60, "warning"), (-3_600, "wrong"), (3_600, "wrong")]
)
async def test_a_clock_that_is_off(skew_s: int, state: str):
    async with scripted(lambda _: http(MODELS, date=formatdate(time.time() + skew_s, usegmt=True))) as server:
        facts = await found(provider.connection_findings, asked(base_url=server.url))
    assert facts["clock"].state == state
    if state != "ok":
        assert ("behind" if skew_s > 0 else "ahead of") in facts["clock"].message


async def test_an_authority_that_is_not_trusted_one_that_is_and_a_certificate_that_has_expired(tmp_path: Path):
    import datetime

    authority, file = trustme.CA(), str(tmp_path / "ca.pem")
    authority.cert_pem.write_to_path(file)
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)
    for expires, states in ((None, ("wrong", "ok")), (past, ("wrong", "wrong"))):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        begins = past - datetime.timedelta(days=2) if expires else None
        authority.issue_cert("127.0.0.1", not_after=expires, not_before=begins).configure_cert(context)
        async with scripted(served(http(MODELS)), context) as server:
            stranger = await found(provider.connection_findings, asked(base_url=server.url))
            trusted = await found(provider.connection_findings, asked({"SSL_CERT_FILE": file}, base_url=server.url))
        assert (stranger["endpoint"].state, trusted["endpoint"].state) == states
        assert "SSL_CERT_FILE" in stranger["endpoint"].do
        assert ("holds until" in trusted["endpoint"].message) == (expires is None)
        assert ("expired" in trusted["endpoint"].message) == (expires is not None)
    facts = await found(
        provider.connection_findings, asked({"SSL_CERT_FILE": str(tmp_path / "no.pem")}, base_url="https://127.0.0.1:1")
    )
    assert facts["certificates"].state == "wrong" and "no.pem" in facts["certificates"].message


async def test_a_proxy_that_wants_a_password_one_that_has_it_and_one_that_is_away():
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with authority.cert_pem.tempfile() as file:
        async with scripted(served(http(MODELS)), context) as server, tunnel(f"ann:{PASSWORD}") as proxy:
            base = {"base_url": server.url}
            facts = await found(
                provider.connection_findings, asked({"HTTPS_PROXY": proxy.url, "SSL_CERT_FILE": file}, **base)
            )
            assert facts["account"].state == "wrong" and "the proxy requires a user" in facts["account"].message
            with_password = proxy.url.replace("://", f"://ann:{PASSWORD}@")
            facts = await found(
                provider.connection_findings, asked({"HTTPS_PROXY": with_password, "SSL_CERT_FILE": file}, **base)
            )
            assert (facts["proxy"].state, facts["account"].state) == ("ok", "ok")
            assert proxy.url in facts["proxy"].message
            bad = f"http://ann:{PASSWORD}@127.0.0.1:1"
            facts = await found(
                provider.connection_findings, asked({"HTTPS_PROXY": bad, "SSL_CERT_FILE": file}, **base)
            )
            assert facts["proxy"].state == "wrong" and "127.0.0.1:1" in facts["proxy"].message


async def test_nobody_there_no_key_and_a_key_that_cannot_be_sent(tmp_path: Path):
    facts = await found(provider.connection_findings, asked(base_url="http://127.0.0.1:1"))
    assert facts["endpoint"].state == "wrong" and "refused" in facts["endpoint"].message
    facts = await found(provider.connection_findings, DoctorOptions(environ={}, base_url="http://127.0.0.1:1"))
    assert facts["key"].state == "ok" and "none is set" in facts["key"].message
    away = {"HTTPS_PROXY": "http://127.0.0.1:1"}  # so that no vendor is asked
    facts = await found(provider.connection_findings, DoctorOptions(environ=away))
    assert facts["key"].state == "wrong" and "ANTHROPIC_API_KEY" in facts["key"].do
    facts = await found(provider.connection_findings, asked({"ANTHROPIC_API_KEY": KEY + "\u00e9"}))
    assert facts["key"].state == "wrong" and "cannot be sent" in facts["key"].message
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    key_file.chmod(0o644)
    facts = await found(
        provider.connection_findings,
        DoctorOptions(environ={"ANTHROPIC_API_KEY_FILE": str(key_file)}, base_url="http://127.0.0.1:1"),
    )
    assert facts["key"].state == "warning" and "chmod 600" in facts["key"].do
    facts = await found(provider.connection_findings, asked(model="sim"))
    assert list(facts) == ["endpoint"]


# -- telemetry -------------------------------------------------------------------------------------------------------


async def test_a_collector_that_takes_one_that_refuses_and_one_that_is_dead():
    headers = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{PASSWORD}"}
    async with scripted(lambda one: http(b"", 401 if one.target.endswith("metrics") else 200)) as server:
        facts = await found(collector.telemetry, asked({**headers, "OTEL_EXPORTER_OTLP_ENDPOINT": server.url}))
        assert facts["telemetry"].state in ("ok", "wrong")
        assert server.asked[0].headers["authorization"] == f"Bearer {PASSWORD}"
        one = await found(
            collector.telemetry, asked({**headers, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{server.url}/v1/metrics"})
        )
    assert one["telemetry"].state == "wrong" and "401" in one["telemetry"].message
    dead = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://ann:{PASSWORD}@127.0.0.1:1"}
    facts = await found(collector.telemetry, asked(dead))
    assert facts["telemetry"].state == "wrong" and "127.0.0.1:1" in facts["telemetry"].message
    facts = await found(collector.telemetry, asked({**dead, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}))
    assert facts["telemetry"].state == "wrong" and "no answer" in facts["telemetry"].message
    assert (await found(collector.telemetry, asked()))["telemetry"].state == "ok"


async def test_what_is_no_grpc_and_what_is_and_a_variable_that_is_not_understood():
    async def greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(24)
        writer.write(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        await writer.drain()
        writer.close()

    grpc = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_EXPORTER": "otlp"}
    server = await asyncio.start_server(greets, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    facts = await found(collector.telemetry, asked({**grpc, "OTEL_EXPORTER_OTLP_ENDPOINT": url}))
    server.close()
    assert facts["telemetry"].state == "ok" and "speaks gRPC" in facts["telemetry"].message
    async with scripted(served(http(b"", 200))) as plain:
        environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": plain.url}
        facts = await found(collector.telemetry, asked(environ, timeout_s=0.5))
    assert facts["telemetry"].state == "wrong"
    facts = await found(collector.telemetry, asked({"OTEL_EXPORTER_OTLP_PROTOCOL": "pigeon"}))
    assert any("pigeon" in each.message for each in facts.values()) or facts["telemetry"].state == "ok"


# -- this machine ----------------------------------------------------------------------------------------------------


@pytest.fixture
def as_somebody() -> Iterator[None]:
    """Without root's power over modes."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_folder_that_is_good_and_one_that_others_may_read(tmp_path: Path):
    facts = await found(state_folder.state_folder, asked(state=str(tmp_path / "new" / "state")))
    assert facts["state"].state == "ok" and "made by the first run" in facts["state"].message
    assert not (tmp_path / "new").exists() and not list(tmp_path.iterdir())
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    jobs.chmod(0o755)
    (jobs / "one.sqlite").write_bytes(b"")
    all_of_them = examine([("s", state_folder.state_folder)], asked(state=str(tmp_path)), (), PATIENCE_S)
    assert [each.state for each in all_of_them] == ["warning", "ok"] and "chmod" in all_of_them[0].do
    jobs.chmod(0o700)
    assert (await found(state_folder.state_folder, asked(state=str(tmp_path))))["state"].state == "ok"


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, as_somebody: None, monkeypatch: pytest.MonkeyPatch):
    place = Path("/proc/1") if os.name == "posix" else tmp_path
    (finding,) = examine([("s", state_folder.state_folder)], asked(state=str(place / "state")), (), PATIENCE_S)
    assert finding.state == "wrong" and "--state" in finding.do


@pytest.mark.parametrize(
    ("error", "used", "do"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True, "make room"),
        (OSError(errno.ENOSPC, "No space left on device"), False, "make room, or give another --state"),
        (sqlite3.OperationalError("database or disk is full"), True, "make room"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True, "make room, or have the quota raised"),
        (OSError(errno.EROFS, "Read-only file system"), True, "look at the system's log (`dmesg`), and mount it for writing"),
        (OSError(errno.EMFILE, "Too many open files"), True, "raise the limit (`ulimit -n 1024`)"),
        (sqlite3.OperationalError("no such module"), True, "give another --state"),
    ],
)
def test_a_place_in_which_no_journal_can_be_written_is_mended_by_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, used: bool, do: str
):
    """Another folder is no advice for the jobs that are in this one."""
    if used:
        (tmp_path / "jobs").mkdir(mode=0o700)

    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(sqlite3, "connect", fails)
    (finding,) = checks.state(str(tmp_path))
    assert finding.state == "wrong" and "no journal can be written" in finding.message
    assert finding.do == do


def test_a_network_file_system_and_one_without_a_write_ahead_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checks, "file_system", lambda path: "nfs4")
    (finding,) = examine([("s", state_folder.state_folder)], asked(state=str(tmp_path)), (), PATIENCE_S)
    assert finding.state == "wrong" and "network file system (nfs4)" in finding.message


def test_a_disk_that_is_nearly_full_and_one_without_inodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = namedtuple("usage", "total used free")
    for free, state in ((50 << 20, "wrong"), (500 << 20, "warning"), (50 << 30, "ok")):
        monkeypatch.setattr("shutil.disk_usage", lambda path, free=free: usage(free, 0, free))
        entries = examine([("d", state_folder.disk)], asked(state=str(tmp_path)), (), PATIENCE_S)
        facts = {each.check: each for each in entries}
        assert facts["disk"].state == state and "rows" in facts["disk"].message
    stat = namedtuple("stat", "f_files f_favail")
    states = [next(checks._inodes(stat(10_000, left), tmp_path)).state for left in (5, 500, 5_000)]  # type: ignore[arg-type]
    assert states == ["wrong", "warning", "ok"]
    assert list(checks._inodes(stat(0, 0), tmp_path)) == []  # type: ignore[arg-type]


async def test_a_port_in_use_and_one_that_is_free():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        facts = await found(machine.port, asked(metrics_listen=where))
        assert facts["port"].state == "wrong" and where in facts["port"].message
    assert (await found(machine.port, asked(metrics_listen=where)))["port"].state == "ok"
    assert (await found(machine.port, asked(metrics_listen="nowhere")))["port"].state == "wrong"
    assert await found(machine.port, asked()) == {}


async def test_too_few_descriptors():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    facts = await found(machine.descriptors, asked(concurrency=soft))
    assert facts["descriptors"].state == "wrong" and "--concurrency" in facts["descriptors"].do
    assert (await found(machine.descriptors, asked(concurrency=10)))["descriptors"].state == "ok"


async def test_too_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "meminfo").write_text("MemTotal: 8000000 kB\nMemAvailable:     2000000 kB\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.available_bytes(tmp_path, tmp_path) == 2_048_000_000
    (tmp_path / "memory.max").write_text("600000000\n")
    (tmp_path / "memory.current").write_text("400000000\n")
    free = machine.available_bytes(tmp_path, tmp_path)
    assert free == 200_000_000
    (tmp_path / "memory.stat").write_text(
        "anon 90000000\nfile 310000000\ninactive_file 250000000\nactive_file 60000000\n"
    )
    assert machine.available_bytes(tmp_path, tmp_path) == 450_000_000, "files that were read once are no trouble"
    monkeypatch.setattr(machine, "available_bytes", lambda: free)
    assert (await found(machine.memory, asked()))["memory"].state == "warning"
    assert (await found(machine.memory, asked(cluster="local")))["memory"].state == "wrong"


# -- what is installed -----------------------------------------------------------------------------------------------


def _installed(check: Check) -> list[Finding]:
    return examine([("c", check)], asked(), (), PATIENCE_S)


def test_a_dependency_that_is_too_old_and_one_that_is_missing(monkeypatch: pytest.MonkeyPatch):
    assert _installed(packages.dependencies)[-1].state == "ok"
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.1.0" if name == "msgspec" else real(name))
    old = [each for each in _installed(packages.dependencies) if each.state == "wrong"]
    assert ["msgspec is 0.1.0" in each.message and "pip install -U" in each.do for each in old] == [True]
    needed = (">=3.11", [Requirement("nosuchdistribution>=1"), Requirement("nosuch; sys_platform == 'never'")])
    monkeypatch.setattr(packages, "requirements", lambda: needed)
    assert [each.message for each in _installed(packages.dependencies) if each.state == "wrong"] == [
        "nosuchdistribution is missing"
    ]


def test_a_python_that_is_too_old(monkeypatch: pytest.MonkeyPatch):
    assert _installed(packages.python)[0].state == "ok"
    monkeypatch.setattr("platform.python_version", lambda: "3.9.2")
    assert _installed(packages.python)[0].state == "wrong"


def test_packages_that_hide_ours_and_ours_that_hide_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert [each.state for each in _installed(packages.packages)] == ["ok"]
    (tmp_path / "policies.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert "policies" in _installed(packages.packages)[0].message
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"cortex": ["cortex-bounded-calls", "a-stranger"]})
    assert any(each.state == "wrong" and "a-stranger" in each.message for each in _installed(packages.packages))


def test_a_file_that_hides_a_dependency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pybreaker.py").write_text("")
    import sys

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pybreaker", raising=False)
    entries = [each for each in _installed(packages.dependencies) if each.state == "wrong"]
    assert len(entries) == 1 and "pybreaker" in entries[0].message and str(tmp_path) in entries[0].message


# -- Ray -------------------------------------------------------------------------------------------------------------


def test_nodes_with_other_releases_are_named():
    import platform

    python = platform.python_version()
    same = NodeReport(node="a" * 40, address="10.0.0.1", python=python, ray="2.60.0", cortex=__version__)
    assert [each.state for each in nodes.compared([same, same], "2.60.0", "h:1")] == ["ok"]
    others = [
        NodeReport(node="b" * 40, address="10.0.0.2", python="3.12.1", ray="2.59.0", cortex="0.0.9"),
        NodeReport(node="c" * 40, address="10.0.0.3", trouble="it ran nothing within 5 s"),
    ]
    entries = list(nodes.compared([same, *others], "2.60.0", "h:1"))
    assert [each.state for each in entries] == ["wrong", "wrong"]
    assert all(words in entries[0].message for words in ("bbbbbbbb", "Ray 2.59.0", "Python 3.12.1", "cortex 0.0.9"))


def test_a_lost_node_is_a_warning_beside_those_that_are_well():
    import platform

    well = NodeReport(
        node="a" * 40, address="10.0.0.1", python=platform.python_version(), ray="2.60.0", cortex=__version__
    )
    lost = NodeReport(node="b" * 40, address="pod-b", lost_s=1.8e9)
    first, second = nodes.compared([well, lost], "2.60.0", "h:1")
    assert first.state == "ok" and first.message.startswith("1 node of h:1")
    assert second.state == "warning" and "pod-b was lost at 20" in second.message
    (none, _) = nodes.compared([lost], "2.60.0", "h:1")
    assert "has no live node" in none.message


def test_a_ray_that_is_not_there_is_said_at_once():
    facts = {each.check: each for each in examine([("r", nodes.ray)], asked(cluster="127.0.0.1:1"), (), PATIENCE_S)}
    assert (facts["ray"].state, facts["cluster"].state) == ("ok", "wrong")
    assert "no Ray answers at 127.0.0.1:1" in facts["cluster"].message


# -- how checks run --------------------------------------------------------------------------------------------------


def test_checks_run_side_by_side_each_under_the_limit_and_none_takes_the_others_along():
    goes_on, ended = threading.Event(), list[str]()

    def slow(what: DoctorOptions) -> Iterator[Finding]:
        yield ok("slow", "begun")
        goes_on.wait(PATIENCE_S)
        ended.append("slow")

    def ill(what: DoctorOptions) -> Iterator[Finding]:
        yield ok("ill", "begun")
        raise RuntimeError(f"with {KEY}")

    what = asked()
    entries = examine([("slow", slow), ("ill", ill), ("python", packages.python)], what, _secrets(what), 3.0)
    assert ended == [], "it is not waited for"
    goes_on.set()
    assert [(each.check, each.state) for each in entries] == [
        ("slow", "ok"), ("slow", "wrong"), ("ill", "ok"), ("ill", "warning"), ("python", "ok"),
    ]  # fmt: skip
    assert KEY not in repr(entries)
