"""Each command that a message advises is one that the real parser takes, with the state folder where one was given."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.cli import reference
from actors.cli.main import enter
from actors.files.sinks.jsonl_sink import _FileTarget
from actors.files.sinks.table_sink import TableSink
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from tests.cli.cli_runner import ROOT, Done
from tests.cli.table_files import ASK, SIM, ragged, table
from tests.cli.test_streams import Streams

Cortex = Callable[..., Done]

COMMANDS: dict[str, Any] = {path.removeprefix("cortex "): command for path, command in reference.walked()}
VALUES = {"N": "5", "USD": "1", "FILE": "x", "FILE.jsonl": "x.jsonl", "NAME": "x"}
"""Placeholder in a message -> a value in its place."""
GROUPS = {path.partition(" ")[0] for path in COMMANDS if " " in path}
PROSE = set("and cannot for from has in into is itself job knows may meets needs nor ray that traces wants".split())
"""Words behind the name of the product or of an actor, in texts that name no command."""
STATE = "my state"
OURS = (*SIM, "--accept-bad", "50%", "--price", "input=1,output=1")


def options_of(verb: str) -> set[str]:
    """Return the option names of a command."""
    return {"--help", *(name for each in COMMANDS[verb].params for name in (*each.opts, *each.secondary_opts))}


def options_in(text: str) -> list[str]:
    """Return the options that a text names."""
    return re.findall(r"(?<![\w-])--?[a-z][a-z-]*(?![\w-])", text)


def commands_in(line: str) -> list[tuple[str, str]]:
    """Return the commands that a line names: verb, and the text behind it up to the end of the advice."""
    found = []
    for start in re.finditer(r"(?<![\w./-])cortex (?=[a-z])", line):
        rest = line[start.end() :]
        verb = next((each for each in sorted(COMMANDS, reverse=True) if re.match(rf"{each}(?![\w-])", rest)), "")
        word = re.match(r"[\w-]+", rest)
        prose = line[: start.start()].lower().endswith("the ") or (word and word[0] in PROSE | GROUPS)
        assert verb or prose, f"no such command: cortex {rest}"
        if verb:
            text = re.split(r"[`;]|: |, (?!or --)|(?<![\w-])cortex ", rest.removeprefix(verb))[0]
            found.append((verb, text))
    return found


def parsed(verb: str, text: str) -> dict[str, Any]:
    """Return the parameters of an advised command. Fails if the command has not each option that the text names."""
    assert set(options_in(text)) <= options_of(verb), f"cortex {verb}{text}"
    words = [VALUES.get(word, word) for word in shlex.split(re.sub(r" \(.*|, or --.*", "", text))]
    last = max((place for place, word in enumerate(words) if word.startswith("-")), default=-1)
    for end in range(len(words), last, -1):  # prose may follow the command
        try:
            return dict(COMMANDS[verb].make_context(verb, words[:end]).params)
        except Exception:  # each version of the parser has its own class of error
            continue
    return dict(COMMANDS[verb].make_context(verb, words[: last + 1]).params)


# -- in the code -------------------------------------------------------------------------------------------------------


def _text(node: ast.AST) -> str:
    """Return a text of the code, each value in it as a word, and an advised command as it will read."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "X"
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.FormattedValue):
        return _text(node.value)
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = node.args[1:] if name == "advised" else node.args
        of_app = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in ("app", "programs", "k8s")
        if name in ("advised", "command") and given and not of_app:
            return " ".join(["cortex", *map(_text, given)])
    return "X"


def _texts() -> Iterator[tuple[str, str]]:
    for package in ("actors", "cortex", "policies"):
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            inner = {id(part) for each in ast.walk(tree) if isinstance(each, ast.JoinedStr) for part in each.values}
            for node in ast.walk(tree):
                whole = isinstance(node, (ast.Constant, ast.JoinedStr, ast.Call)) and id(node) not in inner
                if whole and "cortex " in (text := _text(node)):
                    yield str(path.relative_to(ROOT)), " ".join(text.split())


def test_each_command_that_the_code_names_exists_and_has_its_options() -> None:
    found = [(path, verb, text) for path, line in _texts() for verb, text in commands_in(line)]
    wrong = [each for each in found if not set(options_in(each[2])) <= options_of(each[1])]
    assert not wrong
    assert len(found) > 100


# -- as they are printed -----------------------------------------------------------------------------------------------


def checked(done: Done, verb: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the commands that a command advised, with their parameters. Fails unless each can be given, for a job of
    the state folder, and unless the command has all other options that it names.
    """
    found = []
    for line in done.said():
        advice = commands_in(line)
        for name, text in advice:
            params = parsed(name, text)
            if "state" in params:
                assert params["state"] == os.path.realpath(STATE), line
            if job := params.get("job"):
                assert StateFolder(STATE).has(job), line
            found.append((name, params))
        own = line
        for name, text in advice:
            own = own.replace(f"cortex {name}{text}", "")
        for name, option in re.findall(r"\b(resume|retry|attach)\b(?: it)? with (?:a \w+ )?(--?[a-z][\w-]*)", own):
            assert option in options_of(name), line
        if not re.search("command that began|first command|same command", own):
            assert set(options_in(own)) <= options_of(verb), line
    return found


@pytest.fixture
def here(cortex: Cortex) -> Cortex:
    """Commands over a state folder that each of them names."""

    def run(verb: str, *arguments: object) -> Done:
        return cortex(*verb.split(), *arguments, *(("--state", STATE) if "--state" in options_of(verb) else ()))

    return run


def _failing(here: Cortex) -> None:
    """A job with rows that were cut, were too large, were refused and could not be read."""
    Path("t.csv").write_text("ticket_id,text\na,It crashes\nb,\nc,x,y\nd," + "word " * 900 + "\n")
    ask = ("--prompt", "In a word: what is {{text}}?", "--id", "ticket_id", "--max-output-tokens", 2, "--prompt-tokens-max", 200)
    done = here("batch", "t.csv", *ask, *OURS, "-o", "o.csv", "--job", "j")
    assert done.code == 1, done
    assert ("retry", "5") in [(verb, str(params["max_output_tokens"])) for verb, params in checked(done, "batch")]


def _capped(here: Cortex, output: str = "o.csv") -> Done:
    table(Path("t.csv"), 6)
    done = here("batch", "t.csv", *ASK, *OURS, "-o", output, "--job", "j", "--max-job-tokens", 120, "--max-output-tokens", 8)
    assert done.code == 3, done
    return done


def _complete(here: Cortex, output: str = "o.csv") -> Done:
    table(Path("t.csv"), 3)
    done = here("batch", "t.csv", *ASK, *OURS, "-o", output, "--job", "j")
    assert done.code == 0, done
    return done


SITUATIONS: dict[str, tuple[Callable[[Cortex], Any], tuple[tuple[str, ...], ...]]] = {
    "failed": (_failing, (
        ("retry", "j", "--kind", "malformed"), ("results", "j", "--failed"), ("inspect", "j", "--failed"), ("inspect", "j", "zz"),
        ("status", "j"), ("resume", "j"), ("report", "j"), ("set", "j", "--max-cost", "3"), ("fork", "j", "--at", "2", "--job", "k"),
    )),
    "capped": (_capped, (
        ("retry", "j"), ("retry", "j", "--model", "x"), ("status", "j"), ("drain", "j"), ("set", "j", "--max-job-tokens", "130"),
        ("backup", "saved"), ("resume", "j"), ("batch", "t.csv", *ASK, *OURS, "-o", "p.csv", "--job", "j"), ("plan", "t.csv", *ASK, *OURS),
        ("forget", "j"), ("forget", "j"), ("resume", "j"), ("retry", "j"), ("results", "j"),
    )),
    "complete": (_complete, (
        ("retry", "j"), ("resume", "j"), ("attach", "j", "-o", "o.csv"), ("attach", "j", "-o", "t.csv"), ("cancel", "j"), ("status", "nope"),
        ("inspect", "j", "zz"), ("approve", "j"), ("jobs",), ("budget",), ("limit",), ("costs",), ("resume", "nope"), ("rm", "nope"),
        ("batch", "t.csv", *ASK, *OURS, "-o", "p.csv", "--job", "j"),
        ("batch", "t.csv", *ASK, *OURS, "-o", "o.csv", "--job", "j", "--no-keep-text"),
        ("batch", "t.csv", *ASK, *OURS, "-o", "o.csv", "--job", "j", "--fresh"),
    )),
    "streamed": (lambda here: _capped(here, "-"), (("status", "j"), ("retry", "j"), ("resume", "j"), ("results", "j", "--bad"))),
}  # fmt: skip
"""Situation -> how it comes about, and the commands that are given then."""


@pytest.mark.parametrize("name", SITUATIONS)
def test_each_advised_command_can_be_given(here: Cortex, name: str) -> None:
    begins, calls = SITUATIONS[name]
    begun = begins(here)
    if begun is not None:
        checked(begun, "batch")
    for verb, *arguments in calls:
        if verb == "backup":  # the copy is a state folder of its own
            assert f"--state {os.path.realpath('saved')}" in here(verb, *arguments).err
            continue
        done = here(verb, *arguments)
        assert "a fault of cortex" not in done.err, done
        checked(done, verb)


def test_each_advised_command_about_a_job_in_use(here: Cortex) -> None:
    _complete(here)
    with StateFolder(STATE).hold("j"):
        for verb in ("resume", "attach", "retry", "rm", "forget"):
            assert [name for name, _ in checked(here(verb, "j"), verb)] == ["cancel"]


def test_a_program_that_has_changed(here: Cortex) -> None:
    """A type of answers that was edited: a complete job is begun anew by its command, a partial one by ``resume``."""
    typed = ("--schema", "ty.py:Label", "--max-output-tokens", "3", "-o", "o.csv", "--job", "j")
    Path("ty.py").write_text("import msgspec\nclass Label(msgspec.Struct):\n    label: str\n")
    table(Path("t.csv"), 3)
    command = ("batch", "t.csv", *ASK, *OURS, *typed)
    assert here(*command).code == 1
    Path("ty.py").write_text("import msgspec\nclass Label(msgspec.Struct):\n    label: str\n    score: int = 0\n")
    sys.modules.pop("ty", None)
    done = here("retry", "j")
    assert "repeat the command that began it with --overwrite" in done.refused()
    assert checked(done, "retry") == []
    assert "begins anew" in here(*command, "--overwrite").err


# -- where the output fails --------------------------------------------------------------------------------------------


def _streamed(output: str, kind: str, monkeypatch: pytest.MonkeyPatch, *command: str) -> Done:
    streams = Streams(output, kind)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", streams.made["stdout"])
        patch.setattr(sys, "stderr", streams.made["stderr"])
        code = enter(list(command))
    try:
        return Done(code, streams.text("stdout"), streams.text("stderr"))
    finally:
        streams.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full is Linux's")
@pytest.mark.parametrize("kind", ["full", "gone", "closed"])
def test_standard_output(here: Cortex, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    table(Path("t.csv"), 3)
    command = ("batch", "t.csv", *ASK, *OURS, "-o", "-", "--job", "j", "--state", STATE)
    done = _streamed("stdout", kind, monkeypatch, *command)
    if kind == "closed":
        assert (done.code, checked(done, "batch")) == (2, []), done
        assert here(*command[:-2]).code == 0
        return
    assert done.code == 3
    (saving,) = [line for line in done.said() if line.startswith("the results so far: ")]
    ((verb, params),) = checked(Done(3, "", f"cortex: {saving}\n"), "batch")
    checked(done, "batch")
    assert verb == "results" and params["output"] == "x.jsonl"
    assert _given(here, saving.removeprefix("the results so far: ")).code == 0
    assert len(Path("x.jsonl").read_text().splitlines()) == 3


def _given(here: Cortex, command: str) -> Done:
    """Give an advised command as it stands, with a value for each placeholder."""
    _, verb, *words = shlex.split(command)
    at = words.index("--state")
    assert words[at + 1] == os.path.realpath(STATE)
    return here(verb, *[VALUES.get(word, word) for word in words[:at] + words[at + 2 :]])


class _Failing:
    """Writes of a results file that fail with this error number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, *_: Any) -> None:
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize("number", [28, 5, 30, 2], ids=["full", "broken", "read-only", "folder gone"])
@pytest.mark.parametrize("output", ["o.jsonl", "o.csv"])
def test_a_results_file(here: Cortex, monkeypatch: pytest.MonkeyPatch, output: str, number: int) -> None:
    table(Path("t.csv"), 3)
    with monkeypatch.context() as patch:
        if output == "o.csv":
            patch.setattr(TableSink, "_make", _Failing(number))
        else:
            patch.setattr(_FileTarget, "sync", _Failing(number))
        done = here("batch", "t.csv", *ASK, *OURS, "-o", output, "--job", "j")
    assert done.code == 3, done
    assert ("make room" in done.err) == (number == 28)
    advised = [line for line in done.said() if line.startswith(("to go on: ", "to write the results again: "))]
    assert len(advised) == 1, done.err
    checked(done, "batch")
    assert _given(here, advised[0].partition(": ")[2]).code == 0
    assert len(Path(output).read_text().splitlines()) >= 3
    assert last_state(StateFolder(STATE), "j").outcome == "complete"


def test_a_folder_of_results_that_is_gone(here: Cortex) -> None:
    Path("out").mkdir()
    _complete(here, "out/o.csv")
    shutil.rmtree("out")
    done = here("resume", "j")
    assert (done.code, "there is no folder" in done.err, "written again" in done.err) == (2, True, False)
    Path("out").mkdir()
    assert here("resume", "j").code == 0 and Path("out/o.csv").exists()


def test_a_results_file_that_is_not_the_jobs(here: Cortex) -> None:
    _failing(here)
    Path("o.csv").write_text("mine\n")
    for verb in ("resume", "retry"):
        done = here(verb, "j")
        assert "--overwrite" in done.said()[-1], done
        checked(done, verb)
    assert here("retry", "j", "--overwrite", "--max-output-tokens", 50).code == 1
    assert "mine" not in Path("o.csv").read_text()


def test_a_list_of_bad_records_that_is_gone(here: Cortex) -> None:
    ragged(Path("t.csv"), 6, 2)
    assert here("batch", "t.csv", *ASK, *OURS, "-o", "o.csv", "--job", "j", "--bad", "b.jsonl").code == 3
    before = Path("b.jsonl").read_bytes()
    Path("t.csv").unlink()
    for verb in ("resume", "attach"):
        Path("b.jsonl").unlink()
        assert here("results", "j", "--bad").out.encode() == before
        assert "b.jsonl was gone: written again" in here(verb, "j").err
        assert Path("b.jsonl").read_bytes() == before
    assert here("forget", "j").code == 0
    assert not list(Path(STATE).rglob("*.bad.jsonl"))
