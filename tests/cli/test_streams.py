"""Every command with each of its output streams, and both, closed, full, left by its reader and not UTF-8.

The command does its work, its exit code is the right one, and there is no traceback. The commands are those that the
parser knows: a new one fails the first test until it has a line in ``COMMANDS``.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from actors.cli.app import app
from actors.cli.main import enter
from tests.cli.cli_runner import Done
from tests.cli.table_files import ASK, table

Cortex = Callable[..., Done]

TEXT = ("batch", "t.csv", *ASK, "--model", "sim", "--max-output-tokens", "8")
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "batch": ((*TEXT, "-o", "new.csv", "--job", "new", "--json"), (*TEXT, "-o", "-", "--job", "new")),
    "embed": (("embed", "t.csv", "-o", "e.parquet", "--model", "sim", "--json"),),
    "run": (("run", "flow.py", "--model", "sim"), ("run", "flow.py", "--help")),
    "plan": (("plan", "t.csv", *ASK, "--model", "sim"),),
    "status": (("status", "whole"), ("status", "whole", "--json")),
    "top": (("top", "--once"), ("top", "--json")),
    "jobs": (("jobs",), ("jobs", "--json")),
    "set": (("set", "part", "--concurrency", "3", "--json"),),
    "drain": (("drain", "part", "--json"),),
    "limit": (("limit",), ("limit", "sim", "--rpm", "5", "--json")),
    "cancel": (("cancel", "part", "--json"),),
    "attach": (("attach", "part", "--max-job-tokens", "none", "--json"),),
    "answer": (("answer", "part", "x=1"),),
    "approve": (("approve", "part"), ("approve", "part", "--json")),
    "results": (("results", "whole"), ("results", "whole", "-o", "copy.csv")),
    "resume": (("resume", "part", "--max-job-tokens", "none", "--json"),),
    "retry": (("retry", "whole", "--json"),),
    "report": (("report", "whole", "-o", "-"), ("report", "whole")),
    "inspect": (("inspect", "whole"), ("inspect", "whole", "1"), ("inspect", "whole", "--json")),
    "export": (("export", "whole", "-o", "-"), ("export", "whole", "-o", "calls.csv")),
    "costs": (("costs",), ("costs", "--json")),
    "replay": (("replay", "whole"),),
    "diff": (("diff", "whole", "part"),),
    "fork": (("fork", "whole", "--at", "2", "--json"),),
    "down": (("down",),),
    "tend": (("tend",),),
    "config": (("config", "whole"), ("config", "whole", "--json")),
    "metrics": (("metrics",),),
    "verify": (("verify", "whole"), ("verify", "whole", "--json")),
    "backup": (("backup", "saved", "--json"),),
    "rm": (("rm", "whole", "--json"),),
    "gc": (("gc", "--older-than", "0d", "--json"),),
    "forget": (("forget", "whole", "--json"),),
    "budget": (("budget", "team=a", "--max-cost-per-day", "3", "--json"), ("budget",)),
    "doctor": (("doctor", "--model", "sim"),),
    "simulate": (("simulate", "--fault", "nonsense"),),
    "program list": (("program", "list"), ("program", "list", "--json")),
    "program new": (("program", "new", "made.py"),),
    "program plan-votes": (("program", "plan-votes", "--steps", "9", "--success", "0.9"),),
    "program save": (("program", "save", "whole", "--as", "kept"),),
    "program show": (("program", "show", "none"),),
    "program test": (("program", "test", "none"),),
    "program approve": (("program", "approve", "none"),),
    "program run": (("program", "run", "none"),),
    "k8s render": (("k8s", "render", "none.toml"),),
}
"""Command -> calls of it that do its work or, where that needs more than this folder, refuse it."""
OTHERS: tuple[tuple[str, ...], ...] = ((), ("--help",), ("--version",), ("nonsense",), ("status", "none"), ("batch", "no.csv"))
CALLS = [call for calls in COMMANDS.values() for call in calls] + list(OTHERS)
RUNNING = ("batch", "embed", "run", "resume", "attach", "retry")
KINDS = ("closed", "full", "gone", "ascii")


def names(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Names of all commands, those of groups behind the name of their group."""
    for name, each in command.commands.items():
        yield from names(each, (*path, name)) if hasattr(each, "commands") else (" ".join((*path, name)),)


def test_every_command_has_its_line() -> None:
    assert set(names(get_command(app))) == set(COMMANDS)


class Kept(io.BytesIO):
    """Bytes that can still be read when the stream above is closed."""

    def close(self) -> None:
        """Keep the bytes."""


class Streams:
    """Standard output and standard error of one call: what was written, where it could be."""

    def __init__(self, which: str, kind: str) -> None:
        self.kept = {"stdout": Kept(), "stderr": Kept()}
        made = {name: io.TextIOWrapper(each, "utf-8", line_buffering=name == "stderr") for name, each in self.kept.items()}
        self.made: dict[str, Any] = made
        for name in ("stdout", "stderr") if which == "both" else filter(None, [which]):
            self.made[name] = self._broken(kind, self.kept[name])

    @staticmethod
    def _broken(kind: str, kept: Kept) -> Any:
        if kind == "closed":
            return None
        if kind == "ascii":
            return io.TextIOWrapper(kept, "ascii", errors="strict")
        if kind == "full":
            return io.TextIOWrapper(io.BufferedWriter(io.FileIO("/dev/full", "w")), "utf-8")
        read, write = os.pipe()
        os.close(read)
        return io.TextIOWrapper(io.BufferedWriter(io.FileIO(write, "w")), "utf-8")

    def text(self, name: str) -> str:
        """Return what was written."""
        if self.made[name] is not None:
            with contextlib.suppress(OSError) if name == "stderr" else contextlib.nullcontext():
                self.made[name].flush()  # as the interpreter does at its end: an error there is exit code 120
        return self.kept[name].getvalue().decode()

    def close(self) -> None:
        """Close both, whatever they cannot write."""
        for each in filter(None, self.made.values()):
            with contextlib.suppress(OSError):
                each.close()


def called(call: tuple[str, ...], which: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> Done:
    """Run a call in this process, with streams of its own. What the interpreter would flush at its end is flushed."""
    streams = Streams(which, kind)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", streams.made["stdout"])
        patch.setattr(sys, "stderr", streams.made["stderr"])
        code = enter(list(call))
    try:
        return Done(code, streams.text("stdout"), streams.text("stderr"))
    finally:
        streams.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


@pytest.fixture
def folder(template: Path, cortex: Cortex, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two jobs: one is complete, one stopped at its cap. The same for each test."""
    work, kept = template / "work", template / "kept"
    monkeypatch.setenv("CORTEX_STATE", str(work / ".cortex"))
    if not kept.exists():
        work.mkdir()
        monkeypatch.chdir(work)
        table(Path("t.csv"), 6)
        Path("flow.py").write_text("import cortex\n\n\n@cortex.flow\nasync def f(ctx):\n    '''Says é.'''\n    return await ctx.ask('Say é →')\n")
        assert cortex(*TEXT, "-o", "whole.csv", "--job", "whole").code == 0
        assert cortex(*TEXT, "-o", "part.csv", "--job", "part", "--max-job-tokens", "120").code == 3
        shutil.copytree(work, kept)
    monkeypatch.chdir(template)
    return work


def again(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the folder back to its beginning."""
    os.chdir(work.parent)
    shutil.rmtree(work)
    shutil.copytree(work.parent / "kept", work)
    os.chdir(work)


def files(work: Path) -> set[str]:
    return {str(path.relative_to(work)) for path in work.rglob("*") if not path.name.endswith(("-wal", "-shm"))}


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full is Linux's")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: " ".join(call)[:40] or "none")
def test_a_command_does_its_work_and_says_so_by_its_exit_code(
    folder: Path, call: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    again(folder, monkeypatch)
    good = called(call, "", "", monkeypatch)
    assert "Traceback" not in good.err and "a fault of cortex" not in good.err, good.err
    made = files(folder)
    for kind in KINDS:
        again(folder, monkeypatch)
        done = called(call, "stderr", kind, monkeypatch)
        assert done.code == good.code, (kind, done)
        assert bool(done.out) == bool(good.out), (kind, done)
        assert files(folder) == made, kind
    codes = {}
    for kind in KINDS:
        again(folder, monkeypatch)
        done = called(call, "stdout", kind, monkeypatch)
        codes[kind] = done.code
        assert "Traceback" not in done.err and "a fault of cortex" not in done.err, (kind, done.err)
        about = [line for line in done.err.splitlines() if "standard output" in line and "standard output" not in good.err]
        waits = call[:1] and call[0] in RUNNING
        if kind == "ascii" or not good.out or (kind == "gone" and not waits):
            assert (done.code, about) == (good.code, []), (kind, done)
        else:
            assert done.code and done.code == (good.code or done.code), (kind, done)
            assert len(about) == 1, (kind, done.err)
        if "-o" not in call or call[call.index("-o") + 1] != "-":
            assert files(folder) == made, kind
    for kind in ("full", "gone"):  # `> log 2>&1` on a full disk, `2>&1 | head -1`
        again(folder, monkeypatch)
        assert called(call, "both", kind, monkeypatch).code == codes[kind], kind
        if "-o" not in call or call[call.index("-o") + 1] != "-":
            assert files(folder) == made, kind
