"""Text of a provider, a model, a file or a journal steers no terminal, by whatever command it is shown."""

from __future__ import annotations

import io
import itertools
import json
import os
import pty
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from actors.api.progress_bar import ProgressBar
from actors.common.result_stream import ResultStream
from actors.common.terminal import console
from actors.common.tolerant_stream import TolerantStream, tolerant
from actors.files.sinks.jsonl_sink import FileSink
from actors.top.layout import TableRow
from actors.top.sources import TopSnapshot
from actors.top.view import screen
from cortex.values.display import one_line, printable
from tests.cli.cli_runner import Done
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, http

HOSTILE = (
    "e\x1b]0;owned\x07\x1b[2J\x1b]8;;http://evil\x1b\\here\x08\x08\x9b31m\u202egnp\u2066\u200f\u2028"
    "\rcortex: complete\ncortex: complete\r\ncortex: complete\x7f"
)
"""Title, clear screen, link, backspaces, C1, direction, line separator, carriage return, line feed."""
FLOW = """
import cortex


@cortex.flow
async def ask(ctx, texts: list[str]) -> list:
    found = await ctx.map(ctx.ask, texts, on_failure="keep")
    for each in found:
        ctx.log(f"said {each}\\ncortex: complete")
    return [str(each) for each in found]
"""
LOOKS: tuple[tuple[object, ...], ...] = (
    ("status", "JOB"), ("status", "JOB", "--json"), ("jobs",), ("jobs", "--json"), ("jobs", "--all"),
    ("inspect", "JOB"), ("inspect", "JOB", "--json"), ("inspect", "JOB", "--goals"), ("inspect", "JOB", "1"),
    ("inspect", "JOB", "2"), ("inspect", "JOB", "--turns"), ("top", "--once"), ("top", "--json"), ("costs", "--by", "job"),
    ("costs", "--by", "team"), ("costs", "--by", "model"), ("replay", "JOB"), ("replay", "JOB", "--json"), ("config", "JOB"), ("export", "JOB", "x.json"),
    ("results", "JOB", "-o", "copy.csv"), ("results", "JOB", "--bad"), ("report", "JOB"), ("program", "list"),
    ("answer", "JOB"), ("diff", "JOB", "JOB"), ("set", "JOB", "--concurrency", 3), ("doctor",), ("plan", "PLANNED"),
    ("fork", "JOB", "--job", "other"), ("rm", HOSTILE), ("status", HOSTILE), ("gc", "--dry-run"), ("resume", "JOB"),
    ("retry", "JOB"), ("drain", "JOB"), ("cancel", "JOB"), (HOSTILE,), ("forget", "other"),
)  # fmt: skip
SOON = (("status", "JOB"), ("jobs",), ("inspect", "JOB"), ("inspect", "JOB", "2"), ("costs", "--by", "model"), ("top", "--once"), ("retry", "JOB"))


def answered(asked: Asked) -> Answer:
    """A hostile reply, or a hostile refusal."""
    if b"refuse" in asked.body:
        return http({"type": "error", "error": {"type": f"bad{HOSTILE}", "message": f"no: {HOSTILE}"}}, 400)
    return http(
        {
            "id": "m", "type": "message", "role": "assistant", "model": f"m{HOSTILE}", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": f"yes {HOSTILE}"}], "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )  # fmt: skip


def harmless(done: Done, command: object) -> None:
    for name, text in (("out", done.out), ("err", done.err)):
        assert printable(text) == text, f"{command}, {name}: {text!r}"
        lines = [line for line in text.split("\n") if line.startswith("cortex: complete")]
        assert not lines, f"{command}, {name}: a line that is none of ours"


@pytest.fixture
def hostile(cortex: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Done]]:
    """A table and a flow have met a hostile provider, in a folder of hostile names."""
    monkeypatch.setenv("CORTEX_SERVER_KEY", "key-of-nobody-0123456789")
    folder = Path(f"in{HOSTILE}".replace("/", "_"))
    folder.mkdir()
    monkeypatch.chdir(folder)
    column = f"te{HOSTILE}".replace("\r", "").replace("\n", "")
    rows = "".join(f"\"r{at}{HOSTILE}\",\"{'refuse' if at % 2 else 'ask'} {HOSTILE}\"\n" for at in range(4))
    name = f"rows{HOSTILE}.csv".replace("/", "_")
    Path(name).write_text(f"id,\"{column}\"\n{rows}", newline="")
    Path("ask.py").write_text(FLOW)
    with served(answered) as server:
        reach = ("--base-url", server.url, "--model", f"m{HOSTILE}")
        table = ("--prompt", "{{" + column + "}}", "--id", "id")
        done = cortex(
            "batch", name, *table, *reach, "-o", "out.csv", "--job", "table", "--label", "team=red", "--max-failed", 9,
        )  # fmt: skip
        harmless(done, "batch")
        assert done.code == 1, done
        harmless(cortex("batch", name, "--prompt", "{{" + f"no{HOSTILE}" + "}}", *reach, "-o", "no.csv"), "a wrong column")
        harmless(cortex("batch", f"none{HOSTILE}", *table, *reach, "-o", "no.csv"), "no file")
        flow = cortex("run", "ask.py", "-p", 'texts=["ask", "refuse"]', *reach, "--job", "flow", "-o", "flow.json")
        harmless(flow, "run")
        assert "said yes" in flow.err and flow.code == 0, flow

        def run(*words: object) -> Done:
            return cortex(*(each for word in words for each in ((name, *table) if word == "PLANNED" else (word,))))

        yield run


@pytest.mark.parametrize(
    ("job", "looks"), [("table", SOON), *(pytest.param(job, LOOKS, marks=pytest.mark.long) for job in ("table", "flow"))]
)
def test_no_command_shows_a_terminal_what_steers_it(
    job: str, looks: Iterable[tuple[object, ...]], hostile: Callable[..., Done]
) -> None:
    for command in looks:
        words = [job if word == "JOB" else word for word in command]
        done = hostile(*words)
        harmless(done, words)
        assert "Traceback" not in done.err and "a fault of cortex" not in done.err, (words, done.err)
    status = json.loads(hostile("status", job, "--json").out)
    if job == "table":
        assert status["rows_failed"] == 2 and "\x1b" not in status["failed_said"], "the journal holds none either"
    rows = hostile("results", "table").out
    assert all(json.loads(line) for line in rows.split("\n") if line) and "\u202e" in rows, "data is data: to the letter"


# -- the doors ---------------------------------------------------------------------------------------------------------


def anything(chance: random.Random) -> str:
    """A text with all that ever steered a terminal in it."""
    pool = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *HOSTILE, "ü", "日", "א", "\U0001f600", "\ud800", "\udfff"]
    return "".join(chance.choice(pool) for _ in range(chance.randrange(60)))


def test_whatever_is_written_to_a_stream_of_a_command_is_printable() -> None:
    chance = random.Random(1)
    for _ in range(300):
        text = anything(chance)
        for made in (ResultStream, TolerantStream):
            inner = io.StringIO()
            made(inner).write(text)
            shown = inner.getvalue()
            assert printable(shown) == shown == printable(text)
            assert printable(shown) == shown, "twice is once"
        assert all(not line.startswith("cortex") for line in one_line(text).split("\n")[1:])
        value = json.dumps({"text": text.encode("utf-8", "replace").decode()}, ensure_ascii=False)
        assert json.loads(printable(value)) == json.loads(value), "JSON stays the same JSON"


def test_rich_brings_its_own_sequences_and_no_others() -> None:
    from rich.text import Text

    inner = io.StringIO()
    inner.isatty = lambda: True  # type: ignore[method-assign]
    shown = console(tolerant(inner), force_terminal=True, color_system="standard", width=400)
    shown.print(Text(HOSTILE, style="red"), markup=False)
    text = inner.getvalue()
    assert "\x1b[31m" in text, "colours are ours"
    assert printable(text.replace("\x1b[31m", "").replace("\x1b[0m", "")).count("\\x1b") == HOSTILE.count("\x1b")
    assert "\x1b]" not in text and "\x9b" not in text and "\u202e" not in text


def test_the_progress_line_and_a_programs_line_are_printable() -> None:
    inner = io.StringIO()
    bar = ProgressBar(inner)
    bar.print_line(f"cortex: j: {HOSTILE}\ncortex: complete")
    shown = inner.getvalue()
    assert printable(shown) == shown and shown.count("\n") == 4 and "\ncortex" not in shown


def test_a_full_screen_shows_printable_names() -> None:
    shown = screen(TopSnapshot(at_s=0.0, state=f"state {HOSTILE}", jobs=(), clusters=(), trouble=HOSTILE), f"cluster {HOSTILE}")
    assert printable(shown.where) == shown.where and printable(shown.trouble) == shown.trouble
    from actors.top import view

    row = view._shown(TableRow(HOSTILE, (HOSTILE,), details=((HOSTILE, HOSTILE),), about=HOSTILE))
    assert all(printable(text) == text for text in itertools.chain((row.key, row.about), row.cells, *row.details))


def test_results_are_to_the_letter_but_on_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        with open(theirs, "w", closefd=False) as terminal:
            monkeypatch.setattr(sys, "stdout", ResultStream(terminal))
            sink = FileSink("-")
            sink.open(0, 0, True)
            sink.write([{"text": "größe \u202e\x9b"}])
            sink.flush()
            sys.stdout.buffer.write("größe \x1b[2J\n".encode())
            sys.stdout.write_data(HOSTILE + "\n")
            sys.stdout.flush()
        seen = ""
        while not seen.endswith("u007f\n"):
            seen += os.read(ours, 10_000).decode().replace("\r\n", "\n")
    finally:
        os.close(ours)
        os.close(theirs)
    assert seen.count("größe") == 2 and printable(seen) == seen, repr(seen)
    inner = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
    plain = ResultStream(inner)
    plain.write_data(HOSTILE)
    plain.flush()
    plain.buffer.write(b"\x1b")
    plain.flush()
    assert inner.buffer.getvalue().decode() == HOSTILE + "\x1b"  # type: ignore[attr-defined]
