"""``docs/schedules.md``: its lines are what cron and systemd take, and what they start is one job a day."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from tests.cli.table_files import table
from tests.support.repository_rules import ROOT

PAGE = (ROOT / "docs" / "schedules.md").read_text()
CRON = [line for line in PAGE.splitlines() if re.match(r"\d", line)]
UNITS = dict(re.findall(r"^```\n# /etc/systemd/system/(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
SAYS = '#!/bin/sh\npwd >"$OUT.folder"\nfor word in "$@"; do printf "%s\\n" "$word"; done >"$OUT"\nexit "${CODE:-0}"\n'
DAY = "2025-11-24"
NIGHT = ["batch", f"tickets-{DAY}.csv", "-f", "labels.toml", "-o", f"labels-{DAY}.csv", "--job", f"labels-{DAY}"]


def shell(line: str, folder: Path, code: int = 0) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    """Words that ``cortex`` gets from a shell line, at home in ``folder``, on a day of its own. It begins elsewhere, as cron does,
    and the state folder ``.cortex`` is where ``cortex`` runs."""
    tools = {"cortex": SAYS, "date": f"#!/bin/sh\n[ \"$*\" = '-u +%F' ] && echo {DAY}\n"}
    for path in (folder / "bin", folder / ".venv" / "bin"):
        path.mkdir(parents=True, exist_ok=True)
        for name, text in tools.items():
            (path / name).write_text(text)
            (path / name).chmod(0o755)
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin", "OUT": f"{folder}/words", "CODE": str(code)}
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    command = ["sh", "-c", line.replace("/srv/labels", str(folder))]
    done = subprocess.run(command, env=environment, cwd=elsewhere, capture_output=True, text=True, timeout=120, check=False)
    assert (folder / "words.folder").read_text() == f"{folder}\n", line
    return (folder / "words").read_text().split(), done


def cron_command(line: str) -> str:
    """The command of a line as cron runs it: crontab(5), an unescaped per cent sign is a new line."""
    assert re.fullmatch(r"[-\d*/,]+(\s+[-\d*/,]+){4}", " ".join(line.split()[:5])), line
    command = line.split(None, 5)[5]
    assert not re.search(r"(?<!\\)%", command), f"cron ends the command here: {command}"
    return command.replace("\\%", "%")


def systemd_command(unit: str) -> str:
    """The command of a unit, as systemd reads it: systemd.service(5), Command lines; systemd.unit(5), Specifiers."""
    (line,) = re.findall(r"^ExecStart=(.*)$", UNITS[unit], re.MULTILINE)
    assert not re.search(r"(?<![%$])[%$](?![%$])", line), line
    (folder,) = re.findall(r"^WorkingDirectory=(.*)$", UNITS[unit], re.MULTILINE)
    return f"cd {folder} && " + line.replace("%%", "%").replace("$$", "$")


def test_each_line_starts_a_job_named_after_the_day(tmp_path):
    nightly, weekly = map(cron_command, CRON)
    for line in (nightly, systemd_command("labels.service")):
        assert shell(line, tmp_path)[0] == NIGHT, line
    for line in (weekly, systemd_command("labels-gc.service")):
        assert shell(line, tmp_path)[0] == ["gc", "--older-than", "30d"], line


def test_a_night_that_ends_badly_is_mailed_by_cron(tmp_path):
    (tmp_path / "nights.log").write_text("one\ntwo\nthree\nfour\n")
    assert shell(cron_command(CRON[0]), tmp_path, code=3)[1].stdout == "two\nthree\nfour\n"
    assert shell(cron_command(CRON[0]), tmp_path)[1].stdout == ""


@pytest.mark.parametrize("words", [NIGHT, ["gc", "--older-than", "30d"]], ids=["night", "gc"])
def test_what_is_started_are_commands_that_exist(words, tmp_path, monkeypatch):
    from actors.cli.app import app

    monkeypatch.chdir(tmp_path)
    (job_file,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    Path("labels.toml").write_text(job_file)
    command = typer.main.get_command(app)
    command.commands[words[0]].make_context("x", words[1:])  # type: ignore[attr-defined]


def test_the_same_day_goes_on_and_the_next_begins(cortex):
    (job_file,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    Path("labels.toml").write_text(job_file)
    for day, rows in ((DAY, 3), ("2025-11-25", 5)):
        table(Path(f"tickets-{day}.csv"), rows)
    rehearsed = ("--model", "sim", "--price", "input=1,output=5", "--json")
    nights = []
    for day in (DAY, DAY, "2025-11-25"):
        done = cortex(*(word.replace(DAY, day) for word in NIGHT), *rehearsed)
        assert done.code == 0, done.err
        nights.append([done.last[name] for name in ("job", "rows_succeeded", "paid_calls")])  # of all its runs
    next_day = ["labels-2025-11-25", 5, 2]  # rows that were asked the day before are remembered
    assert nights == [[f"labels-{DAY}", 3, 3], [f"labels-{DAY}", 3, 3], next_day]


def test_the_units_are_what_systemd_takes(tmp_path):
    """A misspelt key is a warning for systemd, which then starts nothing, or something else."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("not installed: systemd-analyze")
    for name, text in UNITS.items():
        (tmp_path / name).write_text(re.sub(r"^ExecStart=/srv/\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
        if name.endswith(".timer"):
            assert name.replace(".timer", ".service") in UNITS
            (when,) = re.findall(r"^OnCalendar=(.*)$", text, re.MULTILINE)
            subprocess.run([analyze, "calendar", when], check=True, capture_output=True, timeout=120)
    assert len(UNITS) == 4

    def said() -> str:
        units = [str(tmp_path / name) for name in UNITS]
        done = subprocess.run([analyze, "verify", *units], capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    assert said() == ""
    timer = tmp_path / "labels.timer"
    timer.write_text(timer.read_text().replace("OnCalendar", "OnCalender"))
    assert "Unknown key 'OnCalender'" in said()


def test_the_page_and_kubernetes_have_the_same_weekly_job():
    text = (ROOT / "k8s" / "schedules" / "gc.yaml").read_text()
    (command,) = re.findall(r"^ +command: \[(.*)\]$", text, re.MULTILINE)
    (schedule,) = re.findall(r'^  schedule: "(.*)"$', text, re.MULTILINE)
    assert shlex.join(command.split(", ")[4:]) == cron_command(CRON[1]).partition(" && ")[2]
    assert schedule.split() == CRON[1].split()[:5]
