"""What is only said stops no job and changes no exit code: progress, logs, telemetry, notifications, status notes."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cortex as client
from actors.api.progress_bar import ProgressBar
from actors.common.harmless import harmless
from actors.journal.journal import StateFolder, StoreError
from actors.observability.traces import export_queue
from tests.cli.cli_runner import Done, each_once, requests
from tests.cli.test_streams import Streams

Cortex = Callable[..., Done]

ROWS = 12
AWAY = "http://127.0.0.1:9"
"""Address at which nobody listens (port 9 is "discard")."""


def _raise(*_: Any) -> None:
    raise RuntimeError("no display")


def _refuse(*_: Any) -> None:
    raise StoreError("the disk is full")


def _progress(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    patch.setattr(ProgressBar, "show", _raise)
    return ()


def _status_notes(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    folder = type(StateFolder(".cortex"))
    patch.setattr(folder, "put_note", _refuse)
    return ()


def _exporters(name: str) -> Callable[[pytest.MonkeyPatch], tuple[str, ...]]:
    def set_up(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
        patch.setattr(export_queue, "CLOSE_S", 0.2)
        for signal in ("TRACES", "METRICS", "LOGS"):
            patch.setenv(f"OTEL_{signal}_EXPORTER", name if signal == "TRACES" or name == "otlp" else "none")
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", AWAY)
        return ()

    return set_up


def _traces_file(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    Path(".cortex").mkdir(exist_ok=True)
    Path(".cortex/traces").write_text("no folder")
    patch.setenv("CORTEX_STATE", ".cortex")
    return ()


def _webhook(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    patch.setattr("actors.channel.webhooks.CLOSE_S", 0.2)
    return ("--notify", f"{AWAY}/hook")


def _webhook_error(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    patch.setattr("actors.channel.webhooks.CLOSE_S", 0.2)
    patch.setattr("actors.channel.webhooks._message", _raise)
    return ("--notify", f"{AWAY}/hook")


def _logs(patch: pytest.MonkeyPatch) -> tuple[str, ...]:
    for name in ("FORMAT", "LEVEL"):  # the command sets them for its actors: they end with the test
        patch.setenv(f"CORTEX_LOG_{name}", "")
    return ("--log-format", "json", "--log-level", "debug")


NUISANCES = {
    "progress": _progress, "status notes": _status_notes, "collector away": _exporters("otlp"),
    "console": _exporters("console"), "traces file": _traces_file, "webhook away": _webhook,
    "webhook error": _webhook_error, "logs": _logs,
}  # fmt: skip


@pytest.mark.parametrize("full", [False, True], ids=["", "stderr full"])
@pytest.mark.parametrize("nuisance", NUISANCES)
def test_a_job_ends_as_without_it(cortex: Cortex, monkeypatch: pytest.MonkeyPatch, nuisance: str, full: bool) -> None:
    requests(Path("in.jsonl"), ROWS)
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        more = NUISANCES[nuisance](patch)
        if full:
            streams = Streams("stderr", "full")
            patch.setattr(sys, "stderr", streams.made["stderr"])
        done = cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "j", "--json", *more)
        if full:
            streams.close()
    assert done.code == 0, done
    assert json.loads(done.out.splitlines()[-1])["outcome"] == "complete"
    each_once(Path("out.jsonl"), ROWS)


@pytest.mark.parametrize("as_error", [False, True], ids=["warning", "warnings are errors"])
def test_a_progress_function_that_raises(tmp_path: Path, as_error: bool) -> None:
    calls: list[Any] = []

    def progress(facts: dict[str, Any]) -> None:
        calls.append(facts)
        raise ValueError("no widget")

    rows = [{"text": f"It crashes {n}"} for n in range(5)]
    with warnings.catch_warnings(record=not as_error) as told:
        warnings.simplefilter("error" if as_error else "always", RuntimeWarning)
        answers = client.batch(rows, "Label: {{text}}", model="sim", state=str(tmp_path), progress=progress)
    assert (answers.outcome, len(answers), bool(calls)) == ("complete", 5, True)
    texts = [str(each.message) for each in told or ()]
    assert as_error or [text for text in texts if "no widget" in text] == [
        "progress raised ValueError: no widget; the job goes on"
    ]


def test_from_python_without_a_standard_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("closed", "full", "gone", "ascii"):
        streams = Streams("stderr", kind)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", streams.made["stderr"])
            answers = client.batch([{"text": "é → 日本"}], "Label: {{text}}", model="sim", state=str(tmp_path))
        streams.close()
        assert answers.outcome == "complete"


def test_only_exceptions_are_held_back() -> None:
    def stop(value: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harmless(stop, "progress")(1)
