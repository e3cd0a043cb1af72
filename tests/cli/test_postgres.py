"""``--state postgresql://…``: the same commands over a database, and one that refuses."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

import actors.journal.postgres as postgres_package
from actors.driver.driver import Driver
from actors.journal.postgres import connection
from actors.journal.postgres import folder as postgres_folder
from actors.journal.postgres.connection import close_idle
from actors.ports.runtime import ClusterError
from tests.cli.cli_runner import Done, requests
from tests.support.patience import PATIENCE_S
from tests.support.postgres_server import Server

PASSWORD = "correct horse battery"


@pytest.fixture
def there(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CORTEX_STATE", database)
    return database


@pytest.fixture(scope="module")
def guarded(postgres: Server) -> Server:
    """The server, with a user whom it asks for a password, some who may do less, and one for TLS."""
    server = postgres
    server.does(
        f"CREATE ROLE ann LOGIN PASSWORD '{PASSWORD}'", "CREATE ROLE poor LOGIN", "CREATE ROLE tls LOGIN",
        "CREATE ROLE crowded LOGIN CONNECTION LIMIT 0", "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    )  # fmt: skip
    hba = server.data / "pg_hba.conf"
    asks = "host all ann 127.0.0.1/32 scram-sha-256\nhostnossl all tls 127.0.0.1/32 reject\n"
    hba.write_text(asks + hba.read_text())
    server.does("SELECT pg_reload_conf()")
    return server


@pytest.mark.parametrize(
    ("user", "database", "variables", "words"),
    [
        ("ann", "postgres", {"PGPASSWORD": "wrong horse"}, ("password authentication failed", "PGPASSWORD")),
        ("ann", "postgres", {}, ("no password supplied", "~/.pgpass")),
        ("nobody", "postgres", {}, ('role "nobody" does not exist',)),
        ("owner", "nowhere", {}, ('database "nowhere" does not exist', "create it first")),
        ("poor", "postgres", {}, ("permission denied", "grant that user the right to create tables")),
        ("crowded", "postgres", {}, ("too many connections", "raise that limit")),
        ("tls", "postgres", {}, ("no encryption", "PGSSLMODE=require")),
        ("owner", "postgres", {"PGSSLMODE": "require"}, ("does not support SSL",)),
        ("owner", "postgres", {"PGSSLMODE": "perhaps"}, ("sslmode",)),
        ("owner", "postgres?colour=red", {}, ("colour",)),
    ],
)  # fmt: skip
def test_a_database_that_refuses_is_one_line_and_nothing_is_spent(
    cortex: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: Server, user: str,
    database: str, variables: dict[str, str], words: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    asked = requests(tmp_path / "in.jsonl", 3)
    state = guarded.address(database, user)
    done = cortex("batch", asked, "-o", "out.jsonl", "--model", "sim", "--state", state)
    (line,) = done.said()
    assert done.code in (2, 3)
    for word in words:
        assert word in line
    for secret in variables.get("PGPASSWORD", PASSWORD), PASSWORD:
        assert secret not in done.err + done.out
    assert not (tmp_path / "out.jsonl").exists()


def test_a_server_that_is_not_there_is_one_line(cortex: Callable[..., Done], tmp_path: Path) -> None:
    asked = requests(tmp_path / "in.jsonl", 3)
    done = cortex("batch", asked, "-o", "out.jsonl", "--model", "sim", "--state", "postgresql://127.0.0.1:1/d")
    (line,) = done.said()
    assert "cannot use the database postgresql://127.0.0.1:1/d" in line
    assert "refused" in line


def test_a_password_is_taken_from_its_usual_places_and_stands_nowhere(
    cortex: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: Server
) -> None:
    guarded.does("CREATE SCHEMA anns AUTHORIZATION ann")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    asked = requests(tmp_path / "in.jsonl", 5)
    state = guarded.address(user="ann", more="?options=-csearch_path%3Danns")
    passes = tmp_path / "passes"
    passes.write_text(f"*:*:*:ann:{PASSWORD}\n")
    passes.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passes))
    by_file = cortex("batch", asked, "-o", "out.jsonl", "--model", "sim", "--job", "j", "--state", state, "-v")
    assert by_file.code == 0
    close_idle()
    monkeypatch.delenv("PGPASSFILE")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    by_variable = cortex("status", "j", "--state", state)
    assert by_variable.code == 0
    text = by_file.out + by_file.err + by_variable.out + by_variable.err
    tables = guarded.does(
        "SELECT string_agg(t::text, ' ') FROM (SELECT encode(blob, 'escape') FROM anns.cortex_turns UNION ALL "
        "SELECT encode(value, 'escape') FROM anns.cortex_meta UNION ALL SELECT encode(value, 'escape') FROM "
        "anns.cortex_notes) t"
    )
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != passes)
    assert PASSWORD not in text + str(tables)
    assert PASSWORD.encode() not in files
    assert os.environ["PGPASSWORD"] == PASSWORD
    close_idle()


def test_the_doctor_looks_at_a_database(cortex: Callable[..., Done], there: str, guarded: Server) -> None:
    def found(*more: str) -> dict[str, str]:
        reported = json.loads(cortex("doctor", "--model", "sim", "--json", *more).out.splitlines()[-1])
        return next(each for each in reported["findings"] if each["check"] == "state")

    assert (found()["state"], "fsync=off" in found()["said"]) == ("warning", True)
    assert "the tables are made by the first run" in found()["said"]
    poor = found("--state", guarded.address(user="poor"))
    assert (poor["state"], "may make no tables" in poor["said"]) == ("wrong", True)
    nowhere = found("--state", "postgresql://127.0.0.1:1/d")
    assert (nowhere["state"], "refused" in nowhere["said"]) == ("wrong", True)
    close_idle()


def test_budgets_bills_and_plans_stand_in_the_database_too(
    cortex: Callable[..., Done], tmp_path: Path, there: str
) -> None:
    asked = requests(tmp_path / "in.jsonl", 4)
    paid = ("--model", "sim", "--price", "input=3,output=15")
    assert cortex("budget", "team=search", "--max-cost-per-day", "5").code == 0
    assert cortex("batch", asked, "-o", "a.jsonl", *paid, "--job", "a", "--label", "team=search").code == 0
    (held,) = json.loads(cortex("budget", "--json").out)["budgets"]
    assert (held["jobs"].keys(), held["spent_usd"] > 0, held["max_cost_usd"]) == ({"a"}, True, 5.0)
    plan = json.loads(cortex("plan", asked, *paid, "--json").out)
    assert (plan["rows"]["remembered"], plan["disk"]["free_bytes"]) == (4, None)
    before = json.loads(cortex("costs", "--by", "team", "--json").out)["total"]
    assert before["cost_usd"] == held["spent_usd"]
    assert cortex("rm", "a").code == 0
    assert json.loads(cortex("costs", "--by", "team", "--json").out)["total"] == before
    (after,) = json.loads(cortex("budget", "--json").out)["budgets"]
    assert after["spent_usd"] == held["spent_usd"]
    assert cortex("budget", "team=search", "--remove").code == 0
    close_idle()


def test_who_shares_limits_has_it_looked_at_whether_the_cortex_can_reach_them(
    cortex: Callable[..., Done], tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is a file here: it is the cortex, on some node, that needs psycopg."""
    asked: list[tuple[str, ...]] = []

    async def start(cluster: str, environ: object, needs: tuple[str, ...] = ()) -> None:
        asked.append(needs)
        raise ClusterError(f"{cluster} does not fit: node n has no psycopg, which this job needs there")

    monkeypatch.setattr("actors.runtime.ray_runtime.start_runtime", start)
    words = ("batch", requests(tmp_path / "in.jsonl", 3), "-o", "out.jsonl", "--model", "sim", "--cluster", "h:6379")
    cortex(*words, "--limits", database).refused("node n has no psycopg")
    cortex(*words).refused("does not fit")
    assert asked == [("psycopg",), ()]


def test_no_look_of_a_driver_asks_the_database_on_the_event_loop(
    cortex: Callable[..., Done], database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is frozen, or whose tables are locked, neither answers nor refuses: the loop would stand."""
    true, look, found = connection.ran, Driver._look.__code__, []

    def ran(*parts: Any) -> Any:
        if any(frame.f_code is look for frame, _ in traceback.walk_stack(None)):  # in a thread it would not be there
            found.append(str(parts[1]))
        return true(*parts)

    for module in pkgutil.iter_modules(postgres_package.__path__):
        one = importlib.import_module(f"{postgres_package.__name__}.{module.name}")
        if getattr(one, "ran", None) is true:
            monkeypatch.setattr(one, "ran", ran)
    (tmp_path / "in.csv").write_text("id,text\n" + "".join(f"r{n},x\n" for n in range(8)))
    done = cortex(
        "batch", str(tmp_path / "in.csv"), "--prompt", "{{text}}", "--id", "id", "--model", "sim", "--sim", "latency_ms=300",
        "-o", str(tmp_path / "out.csv"), "--state", database, "--cluster", "inline",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert found == []


def test_two_slow_requests_at_once_are_told_once_and_raise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Raced(list[Any]):
        """Functions that another thread takes between a look and the taking."""

        def __bool__(self) -> bool:
            return True

    class Timer(threading.Timer):
        def start(self) -> None:
            expired.append(self.function)

    expired: list[Callable[[], None]] = []
    said: list[str] = []
    monkeypatch.setattr(connection, "_tell_slow", Raced([said.append]))
    monkeypatch.setattr(threading, "Timer", Timer)
    with connection._told_if_slow("postgresql://there"), connection._told_if_slow("postgresql://there"):
        for tell in expired:
            tell()
    assert len(expired) == 2 and len(said) == 1


def test_a_command_that_a_locked_table_lets_wait_says_so_once(
    cortex: Callable[..., Done], database: str, postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cortex("batch", requests(tmp_path / "in.jsonl", 1), "-o", "r.jsonl", "--model", "sim", "--state", database, "--job", "j").code == 0
    close_idle()
    monkeypatch.setattr(connection, "SLOW_S", 0.05)
    said = threading.Event()

    def tell_slow(tell: Callable[[str], None]) -> None:
        connection.tell_slow(lambda line: (tell(line), said.set())[0])

    monkeypatch.setattr(postgres_folder, "tell_slow", tell_slow)
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE cortex_jobs IN ACCESS EXCLUSIVE MODE")


        def release() -> None:
            said.wait(PATIENCE_S)
            time.sleep(0.2)  # for as long as four times that it may say so once
            other.rollback()

        releasing = threading.Thread(target=release)
        releasing.start()
        done = cortex("status", "j", "--state", database)
        releasing.join()
    assert done.code == 0 and "complete" in done.out
    told = [line for line in done.err.splitlines() if "has not answered for" in line]
    assert len(told) == 1 and database in told[0] and "it may be frozen, its tables locked (pg_locks)" in told[0]
