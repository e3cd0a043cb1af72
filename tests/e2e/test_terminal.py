"""``cortex top`` and the progress bar in a real terminal, on real jobs at a simulated provider."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.cli.cli_runner import requests, started, until
from tests.e2e.tmux_terminal import terminal
from tests.support.patience import PATIENCE_S


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with a job that has ended."""
    folder = tmp_path / "state"
    requests(tmp_path / "few.jsonl", 5)
    with started(*_batch(tmp_path, "few", "done")) as child:
        assert child.wait(PATIENCE_S) == 0
    return folder


def _batch(folder: Path, rows: str, job: str, *more: object) -> tuple[object, ...]:
    output = folder / f"{job}.out"
    common = ("--model", "sim", "--state", folder / "state", "--job", job)
    return ("batch", folder / f"{rows}.jsonl", "-o", output, *common, *more)


SLOW = ("--sim", "latency_ms=400", "--sim", "throttled=0.05", "--concurrency", 20, "--price", "input=1,output=5")
MANY = 20_000
"""Rows of a job that takes more than six minutes: it is not over before all was looked at."""


def test_top_by_its_keys_in_two_sizes(tmux: str, tmp_path: Path, state: Path) -> None:
    requests(tmp_path / "many.jsonl", MANY)
    with started(*_batch(tmp_path, "many", "busy", *SLOW)) as child, terminal(
        tmux, tmp_path, ("top", "--state", state)
    ) as screen:
        wanted = (
            r"busy +running +[\d,]+/20,000 ", "answered", r"done +complete +5/5 +100%", r"sim at sim:\w+ +closed ",
            r"branch:0 +up +calling ", r"inline +up +closed ",
        )  # fmt: skip
        shown = screen.until(lambda text: all(re.search(each, text) for each in wanted) and "q quit" in text)
        assert shown.splitlines()[-1].strip().startswith("q quit")
        assert len(shown.splitlines()) == 24
        screen.until(lambda text: re.search(r"answered .*[▁▂▃▄▅▆▇█] +\d+/s", text))

        screen.keys("Down")
        screen.until(lambda text: re.search(r"(?m)^ done: 5 calls", text))
        screen.keys("Enter")
        screen.until(lambda text: re.search(r"state +complete", text) and "esc back" in text)
        screen.keys("Escape")
        screen.until(lambda text: "esc back" not in text)

        screen.keys("Tab")
        screen.until(lambda text: re.search(r"(?m)^ sim at sim:\w+: breaker closed", text))
        screen.keys("Enter")
        screen.until(lambda text: re.search(r"latency +\d", text))
        screen.keys("Escape")
        screen.until(lambda text: "esc back" not in text)
        screen.keys("s")
        screen.until(lambda text: "by name" in text)

        screen.resize(160, 50)
        whole = ("P50 MS/TOK", "IN FLIGHT", f"process {child.pid} on ")
        screen.until(lambda text: all(each in text for each in whole))
        screen.resize(60, 12)
        screen.until(lambda text: len(text.splitlines()) == 12 and "P50 MS/TOK" not in text and "busy" in text)

        child.send_signal(signal.SIGINT)
        screen.until(lambda text: re.search(r"busy +partial ", text))
        screen.keys("q")
        screen.until(lambda text: "exit code 0" in text)


def test_top_without_colours_and_over_a_plain_line(tmux: str, tmp_path: Path, state: Path) -> None:
    with terminal(tmux, tmp_path, ("top", "--state", state), NO_COLOR="1") as screen:
        screen.until(lambda text: re.search(r"done +complete", text))
        coloured = re.findall(r"\x1b\[[0-9;]*(?:38|48);[25];([0-9;]+)m", "\n".join(screen.screen(colours=True)))
        assert all(_grey(code) for code in coloured), sorted(set(coloured))
    with terminal(tmux, tmp_path, ("top", "--state", state), TERM="dumb") as screen:
        screen.until(lambda text: "exit code 2" in text)
        assert "top needs a terminal" in "\n".join(screen.screen())


def _grey(code: str) -> bool:
    """Of the 256 colours those without a hue; of true colours those whose parts are equal."""
    parts = [int(part) for part in code.split(";")]
    cube = len(parts) == 1 and 16 <= parts[0] < 232 and len({(parts[0] - 16) // 36, (parts[0] - 16) // 6 % 6, (parts[0] - 16) % 6}) == 1
    return (len(parts) == 3 and len(set(parts)) == 1) or parts[0] >= 232 or cube or parts[0] in (0, 7, 8, 15)


@pytest.mark.parametrize("width", [30, 60, 120])
def test_the_bar_is_one_line_that_stays_in_place(tmux: str, tmp_path: Path, width: int) -> None:
    requests(tmp_path / "many.jsonl", 400)
    command = _batch(tmp_path, "many", "busy", "--sim", "latency_ms=300", "--concurrency", 20)
    with terminal(tmux, tmp_path, command, width, 12) as screen:
        screen.until(lambda text: re.search(r"\d+/400", text))
        for _ in range(15):
            shown = screen.screen()
            assert len([line for line in shown if re.search(r"\d+/400", line)]) <= 1, shown
        screen.until(lambda text: re.search(r"(?m)^exit code 0", text))
        assert not [line for line in screen.screen() if re.search(r"\d+/400", line)]


def test_the_bar_where_rows_come_through_a_pipe_and_where_the_run_goes_on(tmux: str, tmp_path: Path) -> None:
    rows = requests(tmp_path / "many.jsonl", 300)
    slow = ("--sim", "latency_ms=1000", "--concurrency", 20)
    command = ("batch", "-", "-o", tmp_path / "out", "--model", "sim", "--state", tmp_path / "state", "--job", "p", *slow)
    with terminal(tmux, tmp_path, command, 100, 12, piped=rows) as screen:
        screen.until(lambda text: re.search(r"━.* [1-9]\d+/300 rows, \d+\.\d/s", text))
        screen.keys("C-c")
        screen.until(lambda text: re.search(r"(?m)^exit code 130", text))
    again = ("resume", "p", "--state", tmp_path / "state", "--sim", "latency_ms=300")
    with terminal(tmux, tmp_path, again, 100, 12) as screen:
        text = screen.until(lambda text: re.search(r"/300 rows, [1-9]|exit code", text))
        found = re.search(r"(\d+)/300 rows, ([\d.]+)/s", text)
        assert found is not None, text
        assert float(found[2]) < 200, "what an earlier run did is not this one's speed"
        screen.until(lambda text: re.search(r"(?m)^exit code 0", text))


def test_what_is_published_is_gone_when_its_process_was_killed(tmux: str, tmp_path: Path, state: Path) -> None:
    requests(tmp_path / "many.jsonl", MANY)
    with started(*_batch(tmp_path, "many", "busy", *SLOW)) as child:
        until(lambda: (state / "live" / "busy.json").exists())
        with terminal(tmux, tmp_path, ("top", "--state", state)) as screen:
            screen.until(lambda text: re.search(r"busy +running", text))
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            screen.until(lambda text: re.search(r"busy +interrupted", text))
    # the file stands there still, and nobody believes it
    assert (state / "live" / "busy.json").exists()
