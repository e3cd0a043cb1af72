"""Folder to work on, for tests of ``ralph``: a file of sums, a check that names missing and wrong lines, a task."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

TASK = "For each line of items.txt, answers.txt holds the line EXPRESSION = VALUE. The check names what is missing."
CHECK_PY = '''
import pathlib, sys
items = pathlib.Path("items.txt").read_text().splitlines()
place = pathlib.Path("answers.txt")
lines = place.read_text().splitlines() if place.exists() else []
wrong = [line for line in lines if line.partition(" = ")[0] not in items or str(eval(line.partition(" = ")[0])) != line.partition(" = ")[2]]
there = {line.partition(" = ")[0] for line in lines}
missing = [item for item in items if item not in there]
for line in wrong:
    print(f"answers.txt: wrong: {line}")
for item in missing:
    print(f"answers.txt: missing: {item}")
if wrong or missing:
    print(f"{len(wrong) + len(missing)} missing")
%s
sys.exit(bool(wrong or missing))
'''
CHECK = f"{shlex.quote(sys.executable)} check.py"


def workshop(folder: Path, items: int, more: str = "") -> Path:
    """Create the folder with this many items; ``more``: further code of the check, before its end."""
    folder.mkdir()
    (folder / "items.txt").write_text("".join(f"{17 + 3 * item} * {5 + item}\n" for item in range(items)))
    (folder / "check.py").write_text(CHECK_PY % more)
    return folder


def solved(items: int) -> str:
    """Return the sorted content that answers.txt must have, in any order."""
    return "".join(sorted(f"{17 + 3 * item} * {5 + item} = {(17 + 3 * item) * (5 + item)}\n" for item in range(items)))
