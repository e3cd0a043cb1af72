"""Paid rows in a results file stay unless ``--overwrite`` is given: no job that is not the same any more writes there."""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import cortex as client
from actors.api.tables import RowsError
from actors.cli.remote import submit
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.maintenance.offline_edits import amend
from cortex.state import events
from tests.cli.cli_runner import Done, environment, requests, started, until
from tests.cli.table_files import ASK, SIM, table
from tests.support.patience import PATIENCE_S

Cortex = Callable[..., Done]

FORMS = ["o.csv", "o.tsv", "o.csv.gz", "o.parquet", "o.jsonl", "o.jsonl.gz", "o", "memory://kept/o.csv",
         "memory://kept/o.parquet", "memory://kept/o.jsonl"]  # fmt: skip
CHANGES = {
    "prompt": ("--prompt", "Now? {{text}}"), "system": ("--system", "Be brief."), "columns": ("--with-input",),
    "more columns": ("--meta",), "order": ("--ordered",), "schema": ("--schema", "s.json"),
    "what a cut answer is": ("--on-cut", "keep"), "fresh": ("--fresh",), "another model": ("--model", "claude-haiku-4-5"),
}  # fmt: skip
STATES = {
    "complete": ((), "complete"), "capped": (("--max-job-tokens", "600"), "partial"), "no money": (("--sim", "credit_calls=3"), "partial"),
}  # fmt: skip


def content(path: str) -> bytes:
    """The results file, wherever it is; empty if there is none."""
    if "://" not in path:
        return Path(path).read_bytes() if Path(path).exists() else b""
    import fsspec

    store, where = fsspec.core.url_to_fs(path)
    return store.cat_file(where) if store.exists(where) else b""


@pytest.fixture(autouse=True)
def input_files(tmp_path: Path) -> Iterator[None]:
    import fsspec

    table(tmp_path / "t.csv", 30)
    (tmp_path / "s.json").write_text('{"type":"object","properties":{"label":{"type":"string"}},"required":["label"]}')
    yield
    store = fsspec.filesystem("memory")
    if store.exists("/kept"):
        store.rm("/kept", recursive=True)


def batch(output: str) -> tuple[str, ...]:
    return ("batch", "t.csv", "-o", output, *ASK, "--model", "sim", "--job", "j", "--max-output-tokens", "8")


def at(address: str) -> tuple[str, ...]:
    return ("--model", "claude-haiku-4-5", "--base-url", address, "--api-key-file", "key")


def kept(cortex: Cortex, output: str, *command: str) -> str:
    """The command is refused in one line that says the way out, and the file is as it was."""
    before = content(output)
    line = cortex(*command).refused("--overwrite")
    assert content(output) == before
    return line


@pytest.mark.parametrize("output", FORMS)
def test_results_of_a_complete_job_stay(cortex: Cortex, output: str) -> None:
    assert cortex(*batch(output)).code == 0
    line = kept(cortex, output, *batch(output), "--system", "Be brief.")
    assert line.startswith(f"job j is complete, and now asks something else: its results in {output} would be")
    assert line.endswith("give --overwrite, or another --job and -o")
    again = cortex(*batch(output))
    assert again.code == 0 and "already complete" in again.err
    assert cortex(*batch(output), "--system", "Be brief.", "--overwrite").code == 0
    assert cortex(*batch(output), "--system", "Be brief.").code == 0


@pytest.mark.parametrize("output", FORMS)
def test_results_of_a_partial_job_stay_and_the_same_job_goes_on(cortex: Cortex, output: str) -> None:
    assert cortex(*batch(output), "--max-job-tokens", 600).code == 3
    before = content(output)
    assert before
    line = kept(cortex, output, *batch(output), "--system", "Be brief.", "--max-job-tokens", "9000")
    assert "job j is partial, and now asks something else" in line
    assert cortex("resume", "j", "--max-job-tokens", "none").code == 0
    assert cortex("results", "j", "-o", "copy.jsonl").code == 0
    assert len(Path("copy.jsonl").read_text().splitlines()) == 30


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("output", ["o.csv", "o.jsonl"])
def test_whatever_changes_the_rows_stay(cortex: Cortex, output: str, change: str, paid: str) -> None:
    given = (*batch(output), *(at(paid) if change == "fresh" else ()))
    assert cortex(*given).code == 0
    line = kept(cortex, output, *given, *CHANGES[change])
    assert {"fresh": "all rows anew", "another model": "another model"}.get(change, "something else") in line


def flipped(path: Path, at: int) -> bytes:
    """Flip a bit of the file, as a disk may, and return what the file holds then."""
    found = bytearray(path.read_bytes())
    found[at] ^= 1
    path.write_bytes(found)
    return bytes(found)


def test_a_flipped_bit_in_the_rows_of_a_job_that_is_over_is_told(cortex: Cortex) -> None:
    path = Path("o.jsonl")
    assert cortex(*batch("o.jsonl")).code == 0
    whole = path.read_bytes()
    damaged = flipped(path, len(whole) // 2)
    for command in (("resume", "j"), batch("o.jsonl")):
        done = cortex(*command)
        assert done.code == 2 and "o.jsonl is not as this job left it" in done.said()[-1]
        assert "written again" not in done.err and path.read_bytes() == damaged
    done = cortex("resume", "j", "--overwrite")
    assert done.code == 0 and "o.jsonl was changed: written again from the journal" in done.err
    assert path.read_bytes() == whole
    assert "written again" not in cortex("resume", "j").err
    path.rename("away")
    assert cortex("resume", "j").code == 0 and path.read_bytes() == whole


def test_missing_rows_of_a_job_that_is_over_are_not_put_behind_a_flipped_bit(cortex: Cortex) -> None:
    path, folder = Path("o.jsonl"), StateFolder(os.environ["CORTEX_STATE"])
    assert cortex(*batch("o.jsonl")).code == 0
    whole = path.read_bytes()
    begin = b"".join(whole.splitlines(keepends=True)[:20])
    written = events.ResultsWritten(20, len(begin), (), zlib.crc32(begin))
    amend(folder, "j", lambda epoch, k: [written])  # as if the command was killed before the last rows were in the file
    path.write_bytes(begin)
    damaged = flipped(path, len(begin) // 2)
    done = cortex("resume", "j")
    assert done.code == 2 and "o.jsonl is not as this job left it (20 rows" in done.said()[-1]
    assert path.read_bytes() == damaged and last_state(folder, "j").written_checksum == zlib.crc32(begin)
    path.write_bytes(begin)
    assert cortex("resume", "j").code == 0
    assert path.read_bytes() == whole and last_state(folder, "j").written_checksum == zlib.crc32(whole)


def test_the_only_copy_of_rows_stays_whatever_bit_has_flipped(cortex: Cortex) -> None:
    path, command = Path("o.jsonl"), (*batch("o.jsonl"), "--no-keep-text")
    assert cortex(*command).code == 0
    damaged = flipped(path, path.stat().st_size // 2)
    for again in (("resume", "j"), ("resume", "j", "--overwrite"), (*command, "--overwrite")):
        done = cortex(*again)
        assert done.code == 2 and "the job keeps no text: it is the only copy, and stays as it is" in done.said()[-1]
        assert path.read_bytes() == damaged


def marked(path: str, mark: str) -> str:
    """Put a mark into the second line of a table, as a reader of results does."""
    lines = Path(path).read_text().split("\n")
    lines[1] = lines[1].replace(",", f",{mark} ", 1)
    Path(path).write_text("\n".join(lines))
    return lines[1]


@pytest.mark.parametrize("command", ["resume", "batch"])
def test_an_edit_of_a_table_is_not_written_over_when_its_job_goes_on(cortex: Cortex, command: str) -> None:
    assert cortex(*batch("o.csv"), "--max-job-tokens", 600).code == 3
    edit = marked("o.csv", "checked")
    more = ("resume", "j", "--max-job-tokens", "none") if command == "resume" else (*batch("o.csv"), "--max-job-tokens", 9000)
    kept(cortex, "o.csv", *more)
    Path("o.csv").rename("mine.csv")
    assert cortex(*more).code == 0
    assert edit in Path("mine.csv").read_text() and len(content("o.csv").splitlines()) == 31


@pytest.mark.parametrize("edit", ["a cell", "a cell too many"])
def test_an_edit_of_a_table_is_not_written_over_by_a_retry_or_to_complete_it(cortex: Cortex, edit: str) -> None:
    retried = (*batch("o.csv"), "--sim", "hang=0.4", "--sim", "latency_ms=1", "--goal-timeout", "0.2s")
    assert cortex(*retried).code == 1
    marked("o.csv", "checked" if edit == "a cell" else "checked,twice")
    kept(cortex, "o.csv", "retry", "j", "--sim", "hang=0", "--goal-timeout", "none")
    if edit == "a cell too many":
        before, done = content("o.csv"), cortex("resume", "j")
        assert done.code == 2 and "o.csv was changed since job j wrote it" in done.err and content("o.csv") == before
    assert [each.name for each in Path().glob(".o.csv*")] == []
    assert cortex("retry", "j", "--sim", "hang=0", "--goal-timeout", "none", "--overwrite").code == 0
    assert "checked" not in Path("o.csv").read_text()


@pytest.mark.parametrize("state", STATES)
def test_however_the_job_ended_the_rows_stay(cortex: Cortex, state: str) -> None:
    more, outcome = STATES[state]
    cortex(*batch("o.csv"), *more)
    assert json.loads(cortex("status", "j", "--json").out)["outcome"] == outcome
    kept(cortex, "o.csv", *batch("o.csv"), "--system", "Be brief.")


def test_rows_of_a_cancelled_job_stay(cortex: Cortex) -> None:
    assert cortex(*batch("o.csv"), "--max-job-tokens", 600).code == 3
    assert cortex("cancel", "j").code == 0
    assert "job j is cancelled" in kept(cortex, "o.csv", *batch("o.csv"), "--system", "Be brief.")


def test_cancel_ends_a_job_whose_results_file_is_not_its_own(cortex: Cortex) -> None:
    assert cortex(*batch("o.csv"), "--max-job-tokens", 600).code == 3
    Path("o.csv").write_text("mine")
    done = cortex("cancel", "j")
    assert done.code == 0 and "its results are not completed: " in done.err
    assert "o.csv is not as job j left it" in done.err and Path("o.csv").read_text() == "mine"
    assert json.loads(cortex("status", "j", "--json").out)["outcome"] == "cancelled"


@pytest.mark.parametrize("output", ["o.csv", "o.jsonl"])
def test_rows_of_a_killed_job_stay(cortex: Cortex, output: str) -> None:
    slow = ("--sim", "latency_ms=300", "--sim", "latency_spread=0", "--concurrency", "2")
    with started(*batch(output), *slow, env=environment()) as child:
        until(lambda: any(each.stat().st_size for each in Path(".").glob("*o.*") if each.name != "t.csv"))
        child.kill()
        child.wait()
    rows = next(each for each in Path(".").iterdir() if each.name.lstrip(".").startswith(output))
    before = rows.read_bytes()
    cortex(*batch(output), *slow, "--system", "Be brief.").refused("job j is not ended, and now asks something else")
    assert rows.read_bytes() == before
    assert cortex("resume", "j", "--sim", "latency_ms=0").code in (0, 2)


def test_resume_at_another_address_keeps_the_rows(cortex: Cortex, paid: str) -> None:
    assert cortex(*batch("o.csv"), *at(paid), "--max-job-tokens", 600).code == 3
    more = ("--max-job-tokens", "none")
    kept(cortex, "o.csv", "resume", "j", "--base-url", paid.replace("127.0.0.1", "127.0.0.2"), *more)
    assert cortex("resume", "j", *more).code == 0


def test_fresh_where_nobody_answers_keeps_the_rows(cortex: Cortex, paid: str) -> None:
    given = (*batch("o.jsonl"), *at(paid))
    assert cortex(*given).code == 0
    kept(cortex, "o.jsonl", *given, "--fresh")
    assert cortex(*given, "--fresh", "--overwrite").code == 0


def test_a_changed_program_keeps_the_rows(cortex: Cortex) -> None:
    source = "import cortex\n\n\n@cortex.flow\nasync def f(ctx, text: str = ''):\n    return await ctx.ask('{} ' + text)\n"
    Path("f.py").write_text(source.format("Label"))
    Path("in.jsonl").write_text("".join(json.dumps({"text": f"It crashes {i}"}) + "\n" for i in range(3)))
    given = ("run", "f.py", "in.jsonl", "-o", "o.jsonl", "--model", "sim", "--job", "j")
    assert cortex(*given).code == 0, cortex(*given).err
    before = content("o.jsonl")
    Path("f.py").write_text(source.format("Now label"))
    child = started(*given)
    with child as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2 and "would be overwritten" in err
    assert content("o.jsonl") == before


# ---------------------------------------------------------------------------- a file that is not the job's


STRANGERS = {
    "notes": b"somebody's notes\n", "lines": b'{"custom_id": "x"}\n', "a table": b"a,b\n1,2\n3,4\n", "one line": b"mine",
    "the same header": b"ticket_id,answer,error\nmine,1,\n", "many rows": b'{"a": 1}\n' * 5_000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("output", "kind", "state"),
    [(output, kind, state) for kind in STRANGERS for output, state in (("o.csv", "partial"), ("o.jsonl", "complete"))]
    + [(output, "notes", "partial") for output in ("o.jsonl", "o.parquet", "o.jsonl.gz", "memory://kept/o.csv")]
    + [(output, "notes", "complete") for output in ("o.csv", "o.parquet", "o.jsonl.gz", "memory://kept/o.csv")],
)
def test_a_file_put_in_place_of_the_results_stays(cortex: Cortex, output: str, kind: str, state: str) -> None:
    stranger = STRANGERS[kind]
    cortex(*batch(output), *(("--max-job-tokens", 600) if state == "partial" else ()))
    put(output, stranger)
    for command in (("resume", "j", "--max-job-tokens", "none"), (*batch(output), "--max-job-tokens", "9000")):
        line = cortex(*command).said()[-1]
        assert "is not as" in line and "left it: move it away" in line, line
        assert content(output) == stranger
    done = cortex("resume", "j", "--max-job-tokens", "none", "--overwrite")
    assert done.code == 0, done.err
    assert cortex("results", "j", "-o", "copy.csv").code == 0
    if output == "o.csv":
        assert sorted(content(output).splitlines()) == sorted(content("copy.csv").splitlines())


def put(path: str, text: bytes) -> None:
    if "://" not in path:
        Path(path).write_bytes(text)
        return
    import fsspec

    store, where = fsspec.core.url_to_fs(path)
    store.pipe_file(where, text)


@pytest.mark.parametrize("output", ["o.csv", "o.jsonl"])
def test_a_job_in_shards_and_a_retried_job_go_on_with_their_file(cortex: Cortex, output: str) -> None:
    given = (*batch(output), "--shards", "2")
    assert cortex(*given, "--max-job-tokens", 600).code == 3
    kept(cortex, output, *given, "--system", "Be brief.")
    assert cortex("resume", "j", "--max-job-tokens", "none").code == 0
    assert content(output).count(b"\n") == (31 if output == "o.csv" else 30)
    put(output, b"mine\n")
    assert "is not as job j left it" in cortex(*given).said()[-1] and content(output) == b"mine\n"
    again = ("batch", "t.csv", "-o", f"two.{output}", *ASK, "--model", "sim", "--job", "k", "--sim", "cut=0.4")
    cortex(*again, "--max-output-tokens", "8", "--accept-failed", "100%")
    assert cortex("retry", "k", "--max-output-tokens", "40", "--accept-failed", "100%").code in (0, 1, 2)


def test_rows_of_another_job_with_the_same_ids_are_not_continued(cortex: Cortex) -> None:
    requests(Path("in.jsonl"), 30)
    one = ("batch", "in.jsonl", "-o", "o.jsonl", "--model", "sim", "--max-job-tokens", "600", "--max-output-tokens", "4", "--job")
    assert cortex(*one, "a").code == 3
    assert cortex(*one, "b", "--sim", "seed=2", "--overwrite").code == 3
    before = content("o.jsonl")
    again = cortex("resume", "a", "--max-job-tokens", "none")
    assert again.code == 2 and content("o.jsonl") == before, "the rows of b stay"


def test_a_table_that_appears_while_the_job_runs_stays(cortex: Cortex, monkeypatch: pytest.MonkeyPatch) -> None:
    from actors.files.sinks.table_sink import TableSink

    make = TableSink._make

    def late(sink: TableSink, part: Path) -> None:
        make(sink, part)
        Path("o.csv").write_text("mine")

    with monkeypatch.context() as patch:
        patch.setattr(TableSink, "_make", late)
        done = cortex(*batch("o.csv"))
    assert done.code == 3 and "o.csv was written by something else meanwhile: move it away, then resume" in done.err
    assert Path("o.csv").read_text() == "mine"
    Path("o.csv").unlink()
    assert cortex("resume", "j").code == 0
    assert content("o.csv").count(b"\nt") == 30


def test_results_that_were_damaged_or_edited_are_still_the_job_s(cortex: Cortex) -> None:
    for output in ("o.csv", "o.jsonl"):
        given = ("batch", "t.csv", "-o", output, *ASK, "--model", "sim", "--job", output)
        assert cortex(*given).code == 0
        whole = content(output)
        lines = whole.splitlines(keepends=True)
        for harmed in (whole[:-9], b"".join(lines[:3] + lines[5:]), b"".join(lines[:1] + lines[3:]), b""):
            Path(output).write_bytes(harmed)
            assert cortex(*given).code == 0
            assert content(output) == whole


def test_a_table_from_before_overwrite_was_given_may_be_overwritten_by_a_resume(cortex: Cortex) -> None:
    Path("o.csv").write_text("mine\n1\n2\n")
    time.sleep(0.02)
    slow = ("--sim", "latency_ms=300", "--sim", "latency_spread=0", "--concurrency", "2")
    with started(*batch("o.csv"), *slow, "--overwrite", env=environment()) as child:
        until(lambda: any(each.stat().st_size for each in Path(".").glob(".o.csv.rows*")))
        child.kill()
        child.wait()
    assert content("o.csv") == b"mine\n1\n2\n"
    assert cortex("resume", "j").code == 0
    assert content("o.csv").count(b"\nt") == 30


# ------------------------------------------------------------------------------------------------ from Python


OPTIONS: dict[str, Any] = {"model": "sim", "progress": False, "id": "ticket_id", "job": "j"}


@pytest.mark.parametrize("output", ["o.csv", "o.jsonl", "o.parquet", "memory://kept/o.csv"])
def test_from_python(output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    client.batch("t.csv", "Label: {{text}}", output=output, **OPTIONS)
    before = content(output)
    with pytest.raises(RowsError, match=r"would be overwritten: give overwrite=True, or another job= and output="):
        client.batch("t.csv", "Now label: {{text}}", output=output, **OPTIONS)
    assert content(output) == before
    client.batch("t.csv", "Label: {{text}}", output=output, **OPTIONS)
    assert content(output) == before
    client.batch("t.csv", "Now label: {{text}}", output=output, overwrite=True, **OPTIONS)
    put(output, b"mine\n")
    with pytest.raises(RowsError, match=r"is not as job j left it: move it away, or give overwrite=True"):
        client.batch("t.csv", "Now label: {{text}}", output=output, **OPTIONS)
    assert content(output) == b"mine\n"


# ------------------------------------------------------------------------------- other commands that write files


@pytest.mark.parametrize(
    "command",
    [("results", "j", "-o", "mine.csv"), ("results", "j", "--failed", "-o", "mine.jsonl"), ("attach", "j", "-o", "mine.csv"),
     ("report", "j", "-o", "mine.html"), ("report", "j", "--format", "perfetto", "-o", "mine.gz"),
     ("export", "j", "-o", "mine.csv"), ("export", "j", "-o", "mine.parquet"), ("export", "j", "-o", "mine.jsonl"),
     ("fork", "j", "--at", "1", "--job", "two", "-o", "mine.csv"), ("program", "new", "mine.py"),
     ("batch", "t.csv", "-o", "mine.csv", *ASK, *SIM), ("run", "f.py", "-o", "mine.jsonl", "--model", "sim")],
    ids=lambda command: " ".join(command[:2]) + " " + command[-1][:12],
)  # fmt: skip
def test_no_command_writes_over_a_file_that_it_did_not_write(cortex: Cortex, command: tuple[str, ...]) -> None:
    assert cortex(*batch("o.csv")).code == 0
    Path("f.py").write_text("import cortex\n\n\n@cortex.flow\nasync def f(ctx):\n    return await ctx.ask('Hello')\n")
    name = next(each for each in command if each.startswith("mine"))
    Path(name).write_text("mine")
    assert cortex(*command).code == 2
    assert Path(name).read_text() == "mine"
    Path(name).unlink()
    assert cortex(*command).code == 0


def test_the_head_of_a_cluster_overwrites_only_where_the_user_says_so() -> None:
    from actors.cli.options.options import Options

    made = submit.JobPackage()
    for overwrite in (False, True):
        line = submit._line("batch", "j", "o.csv", Options(overwrite=overwrite), {"input": "t.csv"}, made)
        assert ("--overwrite" in line) is overwrite


# ---------------------------------------------------------------------------------------------- a paid provider


class _Paid(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
            "stop_sequence": None, "content": [{"type": "text", "text": "bug"}],
            "usage": {"input_tokens": 30, "output_tokens": 2},
        }).encode()  # fmt: skip
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def paid(cortex: Cortex) -> Iterator[str]:
    Path("key").write_text("sk-test")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Paid) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
