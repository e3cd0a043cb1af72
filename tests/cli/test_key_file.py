"""The key comes from a file, as secrets are mounted; renewed there, it is taken up by the job that waits for it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.providers.anthropic.account import from_environ
from actors.providers.credentials.credential import Credential, RequestAuth
from actors.routing.key_rotation import KeyRotation, rotation
from actors.routing.model_factory import ConnectionSpec
from cortex.values.limits import JobTerms, Route
from tests.cli.cli_runner import each_once, ended, environment, requests, started, until

OLD = "sk-ant-api03-theoldverysecretkeyindeed0123456789"
NEW = "the new and very secret key of a gateway"  # it does not look like one
COUNT = 120


def _get(url: str, changes: dict[str, Any] | None = None) -> Any:
    body = None if changes is None else json.dumps(changes).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as got:
        return json.loads(got.read())


def _told(file: Path, url: str) -> dict[str, str]:
    facts = environment(ANTHROPIC_API_KEY_FILE=str(file), ANTHROPIC_BASE_URL=url)
    return {name: value for name, value in facts.items() if name != "ANTHROPIC_API_KEY"}


def _waits(facts: dict[str, Any]) -> bool:
    """The key was refused, and whatever was in flight has been answered."""
    return facts["waits"].startswith("unauthorised") and not facts["in_flight"]


def _nowhere(folder: Path, mounted: Path) -> None:
    for journal in folder.rglob("*.sqlite"):  # what is still in the write-ahead log is in the file then
        sqlite3.connect(journal).execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for path in folder.rglob("*"):
        if path.is_file() and path != mounted:
            held = path.read_bytes()
            assert OLD.encode() not in held and NEW.encode() not in held, path


@pytest.fixture
def provider():
    setting = [f"keys={OLD}", "latency_ms=600", "latency_spread=0"]  # by four: 18 s for all rows
    with started("simulate", "--port", 0, *(each for one in setting for each in ("-s", one))) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]


def test_a_key_renewed_in_its_file_in_the_middle_of_a_job(cortex, provider, tmp_path):
    requests(Path("in.jsonl"), COUNT)
    mounted = tmp_path / "key"
    mounted.write_text(OLD + "\n")
    job = (
        "batch",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--job",
        "mine",
        "--wait-blocked",
        "5m",
        "--concurrency",
        4,
        "--json",
    )
    with started(*job, env=_told(mounted, provider)) as child:
        until(lambda: _get(f"{provider}/_sim/stats")["worked"] >= 8)
        _get(f"{provider}/_sim/settings", {"keys": [NEW]})
        until(lambda: _waits(cortex("status", "mine", "--json").last))
        refused = _get(f"{provider}/_sim/stats")
        assert 1 <= refused["unauthorised"] <= 4  # those in flight, and none since
        assert refused["worked"] < COUNT
        fresh = tmp_path / "fresh"
        fresh.write_text(NEW)
        _get(f"{provider}/_sim/settings", {"latency_ms": 20})
        os.replace(fresh, mounted)
        done = ended(child, 30)  # before the cortex would have probed by itself
    last = done.last
    assert (done.code, last["outcome"], last["rows_succeeded"], last["rows_failed"]) == (0, "complete", COUNT, 0)
    each_once(Path("out.jsonl"), COUNT)
    stats = _get(f"{provider}/_sim/stats")
    assert (stats["complete_answers"], last["paid_calls"], last["paid_again"]) == (COUNT, COUNT, 0)
    assert stats["unauthorised"] == refused["unauthorised"]
    assert OLD not in done.out + done.err and NEW not in done.out + done.err
    _nowhere(StateFolder(os.environ["CORTEX_STATE"]).path, mounted)
    _nowhere(tmp_path, mounted)


def test_a_key_that_is_renewed_before_the_old_one_is_refused_stops_nothing(cortex, provider, tmp_path):
    requests(Path("in.jsonl"), COUNT)
    mounted = tmp_path / "..data"  # as Kubernetes mounts secrets: a link that is moved to another folder
    for name, key in (("one", OLD), ("two", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "key").write_text(key + "\n")
    mounted.symlink_to(tmp_path / "one")
    job = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--concurrency", 4, "--json")
    facts = environment(ANTHROPIC_BASE_URL=provider, ANTHROPIC_API_KEY="the-key-of-the-environment-is-not-asked-for")
    with started(*job, "--api-key-file", f"{tmp_path}/..data/key", env=facts) as child:
        until(lambda: _get(f"{provider}/_sim/stats")["worked"] >= 8)
        (tmp_path / "next").symlink_to(tmp_path / "two")
        os.replace(tmp_path / "next", mounted)
        _get(f"{provider}/_sim/settings", {"keys": [NEW], "latency_ms": 20})
        done = ended(child)
    last, stats = done.last, _get(f"{provider}/_sim/stats")
    assert (done.code, last["outcome"], last["rows_succeeded"], last["rows_failed"]) == (0, "complete", COUNT, 0), done
    assert (stats["complete_answers"], last["paid_calls"], last["attempts"], last["failures"]) == (
        COUNT,
        COUNT,
        COUNT,
        {},
    )
    assert 1 <= stats["unauthorised"] <= 4  # those in flight: each is sent once more, and fails nobody
    state = last_state(StateFolder(os.environ["CORTEX_STATE"]), "mine")
    assert state.terms.route.credential == Credential(api_key=OLD).fingerprint  # the same account: one route, one pool
    assert OLD not in done.out + done.err and NEW not in done.out + done.err
    for name in ("one", "two"):
        (tmp_path / name / "key").unlink()
    _nowhere(StateFolder(os.environ["CORTEX_STATE"]).path, mounted)
    _nowhere(tmp_path, mounted)


def test_the_file_is_kept_with_the_job_and_read_anew_when_it_is_resumed(cortex, provider, tmp_path, monkeypatch):
    requests(Path("in.jsonl"), 5)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    Path("key").write_text(NEW)
    job = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--base-url", provider)
    done = cortex(*job, "--api-key-file", "key")
    assert done.code == 3
    assert "unauthorised: " in done.err
    Path("key").write_text(OLD)
    done = cortex("resume", "mine", "--json")
    assert (done.code, done.last["rows_succeeded"]) == (0, 5), done.err


@pytest.mark.long
def test_without_a_new_key_in_the_file_it_pauses_and_goes_on_when_resumed(cortex, provider, tmp_path):
    requests(Path("in.jsonl"), 20)
    mounted = tmp_path / "key"
    mounted.write_text(NEW)
    job = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--wait-blocked", "3s", "--concurrency", 4)
    with started(*job, "--json", env=_told(mounted, provider)) as child:
        done = ended(child)
    assert (done.code, done.last["outcome"], done.last["rows_failed"]) == (3, "partial", 0)
    assert re.search(r"unauthorised: .*set the key of that server in CORTEX_SERVER_KEY or --api-key-file, or correct", done.err)
    assert _get(f"{provider}/_sim/stats")["unauthorised"] <= 4  # it was not tried again with the same key
    mounted.write_text(OLD)
    with started("resume", "mine", "--json", env=_told(mounted, provider)) as child:
        done = ended(child)
    assert (done.code, done.last["rows_succeeded"], done.last["paid_calls"]) == (0, 20, 20)
    each_once(Path("out.jsonl"), 20)


def test_a_file_without_a_key_is_refused_in_one_line(cortex, monkeypatch):
    requests(Path("in.jsonl"), 3)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    for option in ((), ("--api-key-file", "mounted")):
        Path("mounted").unlink(missing_ok=True)
        _refused(cortex, monkeypatch, option)


def _refused(cortex, monkeypatch, option):
    for content, words in ((None, "no such file"), ("", "is empty"), (f"{OLD}\n{NEW}\n", "several lines")):
        monkeypatch.setenv("ANTHROPIC_API_KEY_FILE", "mounted")  # the command before has taken it away
        if content is not None:
            Path("mounted").write_text(content)
        done = cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "m", *option)
        done.refused("--api-key-file: " if option else "ANTHROPIC_API_KEY_FILE: mounted", "mounted", words)
        assert OLD not in done.err and NEW not in done.err
        assert not Path("out.jsonl").exists()


def _rotation(file: Path, heard: list[Credential]) -> KeyRotation:
    old = Credential(api_key=OLD, base_url="http://x", key_file=str(file))
    other = Credential(api_key="of the local model")
    own = Route(endpoint="http://x", model="m", credential=old.fingerprint)
    second = Route(endpoint="http://y", model="n", credential=old.fingerprint)
    local = Route(endpoint="local", model="l")
    made = JobTerms(job="j", program="batch", params_json=b"{}", fingerprint="f", route=own, fallbacks=(second, local))
    connection = ConnectionSpec(
        endpoint="http://x", credential=old,
        prepared=RequestAuth((("/v1/messages", "http://x/v1/messages", (("x-api-key", OLD),)),)),
        fallbacks=(ConnectionSpec(endpoint="http://y", credential=old), ConnectionSpec(endpoint="local", credential=other)),
    )  # fmt: skip
    found = rotation(made, connection, heard.append)
    assert found is not None
    return found


def test_each_route_that_the_key_opens_is_renamed_once_for_each_change(tmp_path):
    file, entries = tmp_path / "key", []
    watched = _rotation(file, entries)
    for content in (None, "", OLD, f"{OLD}\n"):  # missing or half written for a moment, or as it was
        if content is not None:
            file.write_text(content)
        assert not watched.read()
    file.write_text(NEW)
    assert watched.read()
    assert not watched.read()
    fresh = Credential(api_key=NEW).fingerprint
    assert [route.credential for route in watched.terms.routes] == [fresh, fresh, ""]
    armings = (watched.connection, *watched.connection.fallbacks)
    assert [each.credential.api_key for each in armings if each.credential] == [NEW, NEW, "of the local model"]
    assert armings[0].credential is not None and armings[0].credential.base_url == "http://x"
    assert not armings[0].prepared, "nothing is sent under the old key"
    assert armings[1].route_name == f"http://y|{fresh}|n"
    assert NEW in {credential.api_key for credential in entries}


def test_a_key_from_the_environment_is_not_looked_for_in_a_file():
    made = JobTerms(job="j", program="batch", params_json=b"{}", fingerprint="f", route=Route(endpoint="x", model="m"))
    facts = {"ANTHROPIC_API_KEY": OLD, "ANTHROPIC_API_KEY_FILE": "/somewhere"}
    credential = from_environ(facts)
    assert rotation(made, ConnectionSpec(endpoint="x", credential=credential), lambda credential: None) is None
