"""Draw the picture of the README: ``terminal_picture.py [FILE.svg]``, run by ``make picture``.

A shell in a pseudo-terminal runs the commands below in an empty folder, with the simulated provider. The first command
is killed halfway, the second is the same command again. The screen at the end, colours included, becomes an SVG that
loads no font and no other file. The folder's name is written as "…". Times and counts differ from run to run.
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, LINES = 100, 40
PROMPT = "\x1b[1;32m$\x1b[0m "
BATCH = (
    "cortex batch tickets.csv --prompt 'Answer with one of: bug, praise. {{text}}' \\\n"
    "    --id ticket_id -o labels.csv --job labels --model sim --max-output-tokens 100 --max-cost 5"
)
COMMANDS = (
    "# a rehearsal with the simulated provider; after six seconds kill -9",
    f"timeout -s KILL 6 {BATCH}",
    "# the same command continues the job; no answered row is asked again",
    BATCH,
    "head -4 labels.csv",
)
SETTINGS = {"CORTEX_SIM": "latency_ms=500", "CORTEX_CONCURRENCY": "100", "CORTEX_PRICE": "input=1,output=5"}
"""Options that the picture does not show: a latency as providers have it, and a price in USD per million tokens."""
ROWS = 2_000
TEXTS = (
    "The app crashes when I export a report.", "Love the new dashboard, thank you!", "Search is broken since Monday.",
    "The export is quick, and I love it.", "It crashes on every start.",
)  # fmt: skip

THEME = TerminalTheme(
    (17, 20, 24), (214, 217, 222),
    [(62, 68, 76), (224, 108, 117), (126, 188, 111), (229, 192, 123), (97, 175, 239), (198, 120, 221), (86, 182, 194),
     (214, 217, 222)],
)  # fmt: skip
FORM = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>Two runs in a terminal: the first is killed, the second continues the job</title>
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, Menlo, Consolas, monospace; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def recorded(folder: Path, commands: tuple[str, ...] = COMMANDS) -> bytes:
    """Type the commands into a shell in a terminal; return everything that the shell wrote."""
    with (folder / "tickets.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["ticket_id", "text"])
        rows.writerows((f"T-{number:04}", TEXTS[number % len(TEXTS)]) for number in range(ROWS))
    tools = folder / "bin"
    tools.mkdir()
    (tools / "cortex").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m actors.cli "$@"\n')
    (tools / "cortex").chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CORTEX_", "OTEL_"))} | {
        "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8",
        "PS1": PROMPT, "PS2": "", **SETTINGS,
    }  # fmt: skip
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    shell = subprocess.Popen(
        ["bash", "--norc", "--noediting", "-i"], cwd=folder, env=environ, stdin=inner, stdout=inner, stderr=inner,
        start_new_session=True,
    )  # fmt: skip
    os.close(inner)
    seen = b""
    try:
        for command in commands:
            seen += _until_prompt(outer)
            os.write(outer, f"{command}\n".encode())
        seen += _until_prompt(outer)
    finally:
        shell.kill()
        shell.wait()
        os.close(outer)
    return seen.removesuffix(PROMPT.encode())


def _until_prompt(outer: int, timeout_s: float = 120.0) -> bytes:
    """Output up to the next prompt. Raises ``TimeoutError``."""
    seen, end_s = b"", time.monotonic() + timeout_s
    while not seen.endswith(PROMPT.encode()):
        if not select.select([outer], [], [], max(0.0, end_s - time.monotonic()))[0]:
            raise TimeoutError(f"no prompt after {timeout_s:.0f} s, but {seen[-200:]!r}")
        seen += os.read(outer, 65_536)
    return seen


def shown(sent: str) -> list[str]:
    """Lines of the final screen, with colours: a progress bar is drawn over itself, then removed.

    ``Killed``, which the shell writes at the cursor, is put on a line of its own.
    """
    lines, row, at_start = [""], 0, False
    for token in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", sent):
        if token == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif token == "\r":
            at_start = True
            continue
        elif token.endswith("A"):
            row -= int(token[2:-1] or 1)
        elif token.endswith("K"):
            lines[row] = ""
        elif token.endswith("m") or token[0] != "\x1b":
            lines[row] = token if at_start else lines[row] + token
        at_start = False
    text = "\n".join(lines).rstrip()
    return re.sub(r"(?<=[^\n])Killed$", "\nKilled", text, flags=re.MULTILINE).split("\n")


def drawn(lines: list[str]) -> str:
    """Return the SVG of these lines, wrapped as the terminal wraps them."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in map(Text.from_ansi, lines):
        for part in line.divide(range(COLUMNS, len(line), COLUMNS)):
            console.print(part, soft_wrap=True)
    return console.export_svg(title="cortex", theme=THEME, code_format=FORM, unique_id="run")


def main() -> None:
    """Run the commands and write the picture."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images" / "run.svg"
    with tempfile.TemporaryDirectory() as folder:
        lines = shown(recorded(Path(folder)).decode().replace(folder, "…"))
    target.write_text("\n".join(line.rstrip() for line in drawn(lines).splitlines()) + "\n")
    print("\n".join(lines))
    print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
