"""Sentences of the pages in docs/, for tests that name a test for each of them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.repository_rules import ROOT


def sentences(page: Path, *, rows: bool = False) -> list[str]:
    """Return the sentences of a page outside its fenced blocks, in order; ``rows``: and the rows of its tables."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    blocks: list[list[str]] = [[]]
    for line in prose.splitlines():
        row = line.startswith("|")
        if row or line.startswith(("#", "- ")) or not line.strip():
            blocks.append([])
        if row and rows and set(line) - set("|- "):
            blocks += [[line], []]
        elif not row and not line.startswith("#"):
            blocks[-1].append(line)
    found: list[str] = []
    for block in blocks:
        text = " ".join(" ".join(block).removeprefix("- ").split())
        found += [text] if text.startswith("|") else re.split(r"(?<=[.])\s+(?=[A-Z`])", text)
    return [each for each in found if each]


def defined_tests() -> set[str]:
    """Return the names of all tests."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found.update(re.findall(r"\bdef (test_\w+)\(", path.read_text()))
    return found
