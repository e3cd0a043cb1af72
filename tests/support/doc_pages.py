"""Pages for users, as text: their fenced blocks, the blocks that are run, and the targets of links.

The fence of a block says how it is treated:
- ``sh``: commands of a reader's shell. A page's blocks share one shell, in an empty folder, and it stops at the first
  command that fails. ``|| echo "exit code $?"`` marks a command that is meant to fail.
- ``python``: a separate program. If its first line is ``# NAME.py`` it is written to NAME.py, for the commands to run.
- ``toml``: the file that its first line names, if it names one.
- ``text``: the output of the block before. ``…`` stands for anything; ``text about``: figures are examples.
- any of them with ``not-run: REASON``: a reader can run the block, a test cannot; ``slow: REASON``: run by `make e2e`.
- without a language: a drawing, or a form with words to be replaced.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.repository_rules import ROOT

LANGUAGES = ("sh", "python", "toml", "yaml", "text", "")
NOT_RUN, SLOW = "not-run: ", "slow: "
_FENCE = re.compile(r"^```([a-z]*) ?(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w.-]+\.[a-z]+)$")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


@dataclass
class Block:
    """Fenced block. ``shown``: the output that the page shows; ``about``: figures may differ."""

    page: str
    line: int
    language: str
    info: str
    text: str
    shown: str = ""
    about: bool = False
    heading: str = ""
    file: str = field(init=False)

    def __post_init__(self) -> None:
        named = _FILE.match(self.text.partition("\n")[0])
        self.file = named[1] if named and self.language != "sh" else ""

    @property
    def left_out(self) -> str:
        """Reason why the block is never run; empty if it is."""
        return self.info.removeprefix(NOT_RUN) if self.info.startswith(NOT_RUN) else ""

    @property
    def slow(self) -> str:
        """Reason why only `make e2e` runs the block; empty if all runs do."""
        return self.info.removeprefix(SLOW) if self.info.startswith(SLOW) else ""


def pages() -> dict[str, str]:
    """Return the text of every page for users, by path."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in found}


def blocks(page: str, text: str) -> list[Block]:
    """Return a page's blocks, in order. Raises ``AssertionError`` for an unknown fence."""
    found: list[Block] = []
    end = -1
    for each in _FENCE.finditer(text):
        language, info, content = each.groups()
        line = text.count("\n", 0, each.start()) + 1
        where = f"{page}:{line}"
        assert language in LANGUAGES, f"{where}: what is a block of {language}?"
        assert info in ("", "about") or info.startswith((NOT_RUN, SLOW)), f"{where}: what does {info!r} mean?"
        if language == "text":
            assert found and not text[end : each.start()].strip(), f"{where}: a text stands behind what writes it"
            found[-1].shown, found[-1].about = content, info == "about"
            end = each.end()
            continue
        headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", text[: each.start()]), re.MULTILINE)
        found.append(Block(page, line, language, info, content, heading=headings[-1] if headings else ""))
        end = each.end()
    assert len(re.findall("^```", text, re.MULTILINE)) % 2 == 0, f"{page}: a fence is not closed"
    return found


def script(blocks: list[Block], folder: Path, alone: bool = False, slow: bool = False) -> str:
    """Return the bash script of these blocks, run in the reader's folder; outputs are written into ``folder``.

    ``alone``: exports of a block are not visible in the next. ``slow``: slow blocks are included.
    """
    begin, end = "()" if alone else "{}"
    lines = ["set -eo pipefail"]
    for number, block in enumerate(blocks):
        form = block.language in ("", "yaml") or (block.language == "toml" and not block.file)
        if form or block.left_out or (block.slow and not slow):
            continue
        name = block.file or (f"snippet_{number}.py" if block.language == "python" else "")
        content = block.text
        if name:
            (folder / name).write_text(block.text)
            content = f"cp {folder / name} {name}\n"
            content += f"python {name}\n" if not block.file else ""
        lines.append(f"echo {number} > {folder}/at\n{begin}\n{content}{end} > {folder}/{number} 2>&1")
    return "\n".join([*lines, f"echo whole > {folder}/at", ""])


def run(
    found: list[Block],
    here: Path,
    folder: Path,
    environ: dict[str, str],
    timeout_s: float,
    alone: bool = False,
    slow: bool = False,
) -> list[str]:
    """Run the blocks in ``here``; return the page's errors, one text each."""
    (folder / "script").write_text(script(found, folder, alone, slow))
    command = ["bash", "--noprofile", "--norc", str(folder / "script")]
    with (folder / "said").open("wb") as said_by_bash:
        shell = subprocess.Popen(
            command, cwd=here, env=environ, stdin=subprocess.DEVNULL, stdout=said_by_bash, stderr=said_by_bash,
            start_new_session=True,
        )  # fmt: skip
        try:
            shell.wait(timeout_s)
        except subprocess.TimeoutExpired:
            said_by_bash.write(f"it took more than {timeout_s} s\n".encode())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)  # with all processes that the page has left running
            shell.wait()
    lines = [
        (folder / str(number)).read_text() if (folder / str(number)).exists() else "" for number in range(len(found))
    ]
    wrong = []
    at = (folder / "at").read_text().strip() if (folder / "at").exists() else "0"
    if at != "whole":
        block = found[int(at)]
        wrong.append(f"{block.page}:{block.line} fails:\n{block.text}\n{lines[int(at)]}{(folder / 'said').read_text()}")
    for block, text in zip(found, lines, strict=True):
        ran = not block.left_out and (slow or not block.slow) and (text or not wrong)
        if block.shown and ran and not like(block.shown, text, block.about):
            wrong.append(f"{block.page}:{block.line} shows\n{block.shown}\nand this comes:\n{text}")
    return wrong


def like(shown: str, said: str, about: bool = False) -> bool:
    """Return whether the output matches what the page shows. ``…`` is anything, alone on a line any lines; ``about``:
    figures may differ.
    """
    pattern = []
    for line in shown.rstrip("\n").split("\n"):
        if line.strip() == "…":
            pattern.append(r"(?:.*\n)*?")
            continue
        parts = [re.escape(_figures(part) if about else part) for part in re.split("…", " ".join(line.split()))]
        pattern.append(".*".join(parts) + r"\n")
    plain = "".join(" ".join(line.split()) + "\n" for line in said.rstrip("\n").split("\n"))
    return re.fullmatch("".join(pattern), _figures(plain) if about else plain) is not None


def _figures(text: str) -> str:
    return _NUMBER.sub("0", text)


def links(page: str, text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each link of a page into the repository: as written, the path, and the anchor."""
    plain = _FENCE.sub("", text)
    for target in re.findall(r"\]\(([^)\s]+)\)", plain):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / page).parent / file if file else ROOT / page
        yield target, str(path.resolve().relative_to(ROOT)), anchor


def anchors(text: str) -> set[str]:
    """Return the anchors of a page: its headings, as Markdown sites name them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
