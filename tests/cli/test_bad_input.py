"""Bad input: one clear line that names what is wrong and the way out, exit code 2, nothing sent, nothing left."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from actors.journal.journal import StateFolder
from tests.cli.cli_runner import each_once, request, requests

ONE = request("a")


def _jobs() -> list[str]:
    return StateFolder(os.environ["CORTEX_STATE"]).jobs()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["in.jsonl: no such file", "looked in"]),
        ("", ["in.jsonl is empty", "one request a line"]),
        ("\n\n", ["blank lines"]),
        ("nonsense\n", ["in.jsonl", "line 1: invalid JSON"]),
        ('{"params": {}}\n', ["line 1: has no custom_id"]),
        ('{"custom_id": "a", "method": "POST", "url": "/v1", "body": {}}\n', ["OpenAI batch format"]),
        (f"[{ONE}]\n", ["JSON array", "jq"]),
        ("name,text\na,b\n", ["CSV"]),
    ],
)
def test_an_input_that_cannot_be_used(cortex, content, words):
    if content is not None:
        Path("in.jsonl").write_text(content)
    cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim").refused(*words)
    assert not Path("out.jsonl").exists()
    assert _jobs() == []


def test_an_input_that_is_a_folder_or_unreadable(cortex):
    Path("in.jsonl").mkdir()
    cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim").refused("in.jsonl is a folder")
    Path("loop.jsonl").symlink_to("loop.jsonl")
    cortex("batch", "loop.jsonl", "-o", "o", "--model", "sim").refused("loop.jsonl cannot be read: Too many levels")


NO_FOLDER = "is a file, no state folder: give another --state"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--state", "in.jsonl"), NO_FOLDER),
        (("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--state", "in.jsonl/x"), "a file in its place"),
        (("batch", "in.jsonl", "-o", "in.jsonl/out.jsonl", "--model", "sim"), "in.jsonl is a file, no folder: name another"),
        (("batch", "in.jsonl/x.jsonl", "-o", "out.jsonl", "--model", "sim"), "a part of the path is a file"),
        (("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--bad", "in.jsonl/b"), "in.jsonl is a file, no folder"),
        *(((*words, "--state", "in.jsonl"), NO_FOLDER) for words in (("jobs",), ("status",), ("status", "j"), ("resume", "j"))),
    ],
)  # fmt: skip
def test_a_file_where_a_folder_is_wanted(cortex, words, told):
    Path("in.jsonl").write_text(ONE)
    cortex(*words).refused(told)


def test_no_key_and_no_model(cortex):
    Path("in.jsonl").write_text(ONE)
    line = cortex("batch", "in.jsonl", "-o", "out.jsonl").refused("no key", "ANTHROPIC_API_KEY", "--model sim")
    assert "claude-test" in line
    cortex("run", "notes", "in.jsonl", "-p", "question=why?").said()
    assert _jobs() == []
    assert not Path("out.jsonl").exists()


def test_rows_that_name_several_models(cortex):
    Path("in.jsonl").write_text(ONE + "\n" + request("b", model="other"))
    cortex("batch", "in.jsonl", "-o", "out.jsonl").refused("several models (claude-test, other)", "--model NAME")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-cost", "much"], ["--max-cost: 'much'", "2.50"]),
        (["--max-cost", "0"], ["--max-cost"]),
        (["--max-cost", "1"], ["no price known for 'sim'", "--price"]),
        (["--price", "3"], ["--price", "input="]),
        (["--max-job-tokens", "0"], ["--max-job-tokens: '0'", "above zero"]),
        (["--rpm", "0"], ["--rpm: '0'", "above zero"]),
        (["--itpm", "-5"], ["--itpm: '-5'"]),
        (["--otpm", "nan"], ["--otpm: 'nan'"]),
        (["--headroom", "1"], ["--headroom: '1'", "below 1"]),
        (["--headroom", "120%"], ["--headroom: '120%'"]),
        (["--priority", "0"], ["--priority: '0'"]),
        (["--deadline", "+0s"], ["--deadline: '0s'", "15m"]),
        (["--deadline", "2001-01-01"], ["--deadline: 2001-01-01 has passed: it is 20"]),
        (["--deadline", "tomorrow"], ["--deadline: 'tomorrow'", "+6h", "ISO 8601"]),
        (["--goal-timeout", "5 minutes"], ["--goal-timeout: '5 minutes'", "15m"]),
        (["--max-failed", "0"], ["--max-failed: '0'", "10%"]),
        (["--max-failed", "100%"], ["--max-failed: '100%'"]),
        (["--max-failed", "1.5"], ["--max-failed: '1.5'"]),
        (["--hedge", "0"], ["--hedge: '0'", "above zero"]),
        (["--hedge", "2m", "--goal-timeout", "1m"], ["--hedge 120s is not below --goal-timeout 60s"]),
        (["--hedge", "2m", "--timeout", "1m"], ["--hedge 120s is not below --timeout 60s"]),
        (["--timeout", "soon"], ["--timeout: 'soon' is no duration"]),
        (["--wait-blocked", "-1h"], ["--wait-blocked: '-1h'"]),
        (["--max-job-tokens", "100", "--max-output-tokens", "100"], ["--max-job-tokens 100 is too small"]),
        (["--max-output-tokens", "200000"], ["replies of 200000 tokens leave no room", "'sim'"]),
        (["--via", "post"], ["--via 'post'", "messages or batches"]),
        (["--via", "batches", "--hedge", "5s"], ["--hedge is for single calls", "--via batches"]),
        (["--via", "batches", "--warm-prefix"], ["--warm-prefix is for single calls"]),
        (["--via", "batches", "--model", "local"], ["--via batches: local takes no message batches"]),
        (["--fallback", "sim"], ["--fallback sim: this route is named twice"]),
        (["--fallback", "sim,seed=2", "--fallback", "sim,seed=2"], ["--fallback sim: this route is named twice"]),
        (["--sim", "storm=0.2"], ["--sim unknown setting 'storm'", "latency_ms, ", "; faults, with their shares: ", "overloaded"]),
        (["--sim", "faults"], ["--sim expected NAME=VALUE (settings: ", "got 'faults'"]),
        (["--sim", "rpm=many"], ["--sim rpm: expected a whole number of at least 1, or none, got 'many'"]),
        (["--fallback", "sim,sed=2"], ["--fallback sim: unknown setting 'sed'"]),
        (["--fallback", "m,speed=2"], ["--fallback 'm,speed=2': cannot read 'speed=2'", "MODEL@https://HOST"]),
        (["--fallback", "m,input=3"], ["--fallback m: price: input and output must both be given"]),
        (["--fallback", "m@http://me:secret@host"], ["--fallback m: its address holds a password"]),
        (["--fallback", "m@http:///x"], ["--fallback m: the address must be an http"]),
        (["--fallback", "local@http://host"], ["local has no address"]),
        (["--fallback", ",input=3"], ["names no model"]),
        (["--fallback", "m"], ["no key in the environment for --model m"]),
        (
            ["--max-cost", "1", "--price", "input=1,output=1", "--fallback", "sim,seed=2"],
            ["no price known for 'sim'", "--fallback sim,input=3,output=15"],
        ),
        (["--concurrency", "0"], ["--concurrency: '0'", "above zero"]),
        (["--concurrency", "many"], ["--concurrency: 'many'"]),
        (["--prompt-tokens-max", "0"], ["--prompt-tokens-max", "cortex batch --help"]),
        (["--accept-failed", "2"], ["--accept-failed '2'", "5%"]),
        (["--sim", "sed=1"], ["sed", "seed"]),
        (["--sim", "throttled=2"], ["throttled"]),
        (["--sim", "seed"], ["seed=VALUE"]),
        (["--cluster", "nowhere"], ["--cluster 'nowhere'", "host:6379"]),
        (["--job", "a/b"], ["job name 'a/b'"]),
        (["--state", "postgresql://me:secret@host/db"], ["the database holds a password", "PGPASSWORD"]),
        (["--state", "postgresql://h/d?colour=red"], ["--state: postgresql://h/d?colour=red: invalid", '"colour"']),
        (["--limits", "postgresql://h/d?colour=red"], ["--limits: postgresql://h/d?colour=red: invalid", '"colour"']),
        (["--limits", "postgresql://me:secret@host/db"], ["--limits: the address of the database holds a password"]),
        (["--limits", "mysql://me:secret@host/db"], ["--limits mysql://host/db"]),
        (["--state", "mysql://me:secret@host/db"], ["--state mysql://host/db"]),
        (["--base-url", "ftp://x"], ["--base-url must be"]),
        (["--base-url", "https://me:secret@host"], ["holds a password", "ANTHROPIC_BASE_URL"]),
        (["--frobnicate"], ["--frobnicate", "cortex batch --help"]),
    ],
)
def test_options_that_make_no_sense(cortex, options, words):
    Path("in.jsonl").write_text(ONE)
    line = cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", *options).refused(*words)
    assert "secret" not in line
    assert _jobs() == []


@pytest.mark.parametrize("option", ["--state", "--limits"])
def test_a_database_without_its_extra(cortex, option, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("psycopg", "actors.journal.postgres"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    Path("in.jsonl").write_text(ONE)
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", option, "postgresql://h/d")
    cortex(*command).refused(f"{option}: a database needs the extra postgres: pip install")


def test_settings_of_the_simulation_for_another_model(cortex):
    Path("in.jsonl").write_text(ONE)
    cortex("batch", "in.jsonl", "-o", "out.jsonl", "--sim", "seed=1").refused("--sim", "--model sim")


@pytest.mark.parametrize("command", ["status", "resume", "attach", "cancel", "results"])
def test_an_unknown_job(cortex, command):
    cortex(command, "nope").refused("no job 'nope'", "cortex jobs")
    cortex(command, "../nope").refused("job name")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("nope", ["no program 'nope'", "notes", "module:Class"]),
        ("nope.py:Label", ["nope.py"]),
        ("nope.py", ["nope.py"]),
        ("json:JSONDecoder", ["is not a program"]),
        ("json:Nope", ["json has no Nope"]),
        ("broken.py:Label", ["broken.py:Label", "ZeroDivisionError"]),
        ("two.py", ["two.py", "One, Two", "two.py:One"]),
        ("empty.py", ["empty.py holds no program"]),
        ("batch", ["cortex batch INPUT -o OUTPUT"]),
    ],
)
def test_an_unknown_program(cortex, program, words):
    Path("broken.py").write_text("1 / 0\n")
    Path("empty.py").write_text("import cortex\nfrom cortex.programs.batch import Batch\n")
    Path("two.py").write_text("import cortex\nclass One(cortex.Program): ...\nclass Two(cortex.Program): ...\n")
    cortex("run", program, "--model", "sim").refused(*words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", "question=why?"], ["notes needs notes", "INPUTS"]),
        (["notes"], ["notes needs question: give -p question=..."]),
        (["notes", "-p", "question"], ["name=value"]),
        (["notes", "-p", "question= "], ["question must not be empty"]),
        (["notes", "-p", "question=why?", "-p", "claims_max=some"], ["claims_max"]),
        (["notes", "-p", "question=why?", "-p", "who=me"], ["-p who", "it takes: question"]),
        (["nowhere", "-p", "question=why?"], ["nowhere: no such file or folder"]),
        (["empty", "-p", "question=why?"], ["empty: no note"]),
        (["notes/latin.md", "-p", "question=why?"], ["notes/latin.md: byte 4 is not UTF-8"]),
        (["bad.jsonl", "-p", "question=why?"], ["bad.jsonl line 2"]),
        (["worse.jsonl", "-p", "question=why?"], ["worse.jsonl line 1: a note is"]),
    ],
)
def test_parameters_and_inputs_of_a_program(cortex, arguments, words):
    for folder in ("notes", "empty"):
        Path(folder).mkdir()
    Path("notes/latin.md").write_bytes("caf\u00e9".encode("latin1"))
    Path("bad.jsonl").write_text('"fine"\nnonsense\n')
    Path("worse.jsonl").write_text('{"title": "no text"}\n')
    if "notes" in arguments:
        Path("notes/latin.md").write_text("A note.")
    cortex("run", "notes", *arguments, "--model", "sim").refused(*words)


def test_an_output_that_exists_or_cannot_be(cortex):
    requests(Path("in.jsonl"), 2)
    Path("out.jsonl").write_text("somebody's\n")
    command = ("batch", "in.jsonl", "--model", "sim", "-o")
    cortex(*command, "out.jsonl").refused("out.jsonl exists", "--overwrite")
    assert Path("out.jsonl").read_text() == "somebody's\n"
    cortex(*command, "nowhere/out.jsonl").refused("no folder nowhere")
    cortex(*command, "in.jsonl").refused("in.jsonl is the input itself")
    cortex(*command, ".").refused("is a folder")
    assert _jobs() == []
    assert cortex(*command, "out.jsonl", "--overwrite").code == 0


def test_an_output_that_exists_is_refused_before_a_key_is_missed(cortex):
    requests(Path("in.jsonl"), 2)
    Path("out.jsonl").write_text("somebody's\n")
    cortex("batch", "in.jsonl", "-o", "out.jsonl").refused("out.jsonl exists")


def test_a_job_keeps_its_places(cortex):
    requests(Path("in.jsonl"), 2)
    assert cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine").code == 0
    again = ("batch", "in.jsonl", "--model", "sim", "--job", "mine", "-o")
    cortex(*again, "other.jsonl").refused("job mine writes to", "cortex results mine -o FILE")
    requests(Path("in.jsonl"), 3)
    cortex(*again, "out.jsonl").refused("in.jsonl is not what job mine began with", "--fresh")
    cortex(*again, "out.jsonl", "--fresh").refused("job mine is complete, and now asks all rows anew", "--overwrite")
    each_once(Path("out.jsonl"), 2)
    assert cortex(*again, "out.jsonl", "--fresh", "--overwrite").code == 0


def test_a_job_in_use(cortex):
    requests(Path("in.jsonl"), 2)
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine")
    folder = StateFolder(os.environ["CORTEX_STATE"]).prepare()
    with folder.hold("mine"):
        cortex(*command).refused("job mine is in use by another run", "cortex cancel mine")
    assert cortex(*command).code == 0
    with folder.hold("mine"):
        for verb in ("resume", "attach"):
            cortex(verb, "mine").refused(f"job mine is in use by process {os.getpid()}", "cortex cancel mine")


def test_a_state_folder_on_a_network_file_system(cortex, monkeypatch):
    requests(Path("in.jsonl"), 2)
    monkeypatch.setattr("actors.journal.sqlite.folder.file_system", lambda path: "nfs4")
    cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim").refused("network file system (nfs4)", "--state")


def test_a_state_folder_that_is_a_file(cortex):
    requests(Path("in.jsonl"), 2)
    done = cortex("batch", "in.jsonl", "-o", "o", "--model", "sim", "--state", "in.jsonl")
    done.refused("is a file, no state folder: give another --state")


def test_a_journal_that_is_none(cortex):
    folder = StateFolder(os.environ["CORTEX_STATE"]).prepare()
    folder.journal_path("odd").write_text("this is no database, and long enough to be sure of it" * 20)
    cortex("status", "odd").refused("no journal, or is damaged")
    assert "odd" in cortex("jobs").out


def test_no_command_and_an_unknown_one(cortex):
    bare = cortex()
    assert bare.code == 2
    assert "batch" in bare.out + bare.err
    cortex("frob").refused("frob", "cortex --help")
    assert cortex("--help").code == 0
    assert cortex("--version").out.startswith("cortex ")


def test_what_nobody_expected_is_one_line_too(cortex, monkeypatch):
    requests(Path("in.jsonl"), 2)

    def fault(path: object) -> None:
        raise RuntimeError("with sk-ant-REDACTED in it\nand a second line")

    monkeypatch.setattr("actors.journal.sqlite.folder.file_system", fault)
    done = cortex("jobs")
    assert done.code == 0
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim")
    assert done.code == 1
    (line,) = done.said()
    assert line.startswith("unexpected RuntimeError: with [redacted] in it and a second line (a fault of cortex")
    shown = cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "-v")
    assert "Traceback" in shown.err
    assert "sk-ant" not in shown.err
