"""Form of the changelog: headings of Keep a Changelog, entries of at most two lines."""

from __future__ import annotations

import re

import pytest

from tests.support.repository_rules import ROOT

KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
"""Headings of a version, in their order: https://keepachangelog.com/en/1.1.0/."""
ENTRY_LINES_MAX = 2
LINE_MAX = 120
BEGIN_CHARS = 80
"""Characters in which the entries of a section differ. A merge that keeps both forms of an entry leaves it twice."""
_VERSION = re.compile(r"## \[(Unreleased\]|\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d)$")


def complaints(text: str) -> list[str]:
    """Departures from the form, a line each."""
    found: list[str] = []
    kinds: list[str] = []
    entry = 0
    begun: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        entry = 1 if line.startswith("- ") else entry + 1 if entry and line.startswith("  ") else 0
        if entry == ENTRY_LINES_MAX + 1:
            found.append(f"line {number}: the entry has more than {ENTRY_LINES_MAX} lines")
        if len(line) > LINE_MAX:
            found.append(f"line {number}: over {LINE_MAX} characters")
        if line.startswith("## "):
            kinds, begun = [], set()
            if not _VERSION.match(line):
                found.append(f"line {number}: {line!r} names no version")
        if line.startswith("### "):
            begun = set()
            kind = line.removeprefix("### ")
            if kind not in KINDS or kind in kinds or [*kinds, kind] != sorted([*kinds, kind], key=KINDS.index):
                found.append(f"line {number}: {kind!r} is unknown, repeated or out of order")
            else:
                kinds.append(kind)
        if entry == 1:
            if line[:BEGIN_CHARS] in begun:
                found.append(f"line {number}: another entry of the section begins with these words")
            begun.add(line[:BEGIN_CHARS])
        if entry == 1 and not kinds:
            found.append(f"line {number}: the entry stands under no heading")
    return found


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert complaints(text) == []
    assert text.startswith("# Changelog\n") and "\n## [Unreleased]\n" in text


@pytest.mark.parametrize(
    "text",
    [
        "## [Unreleased]\n- x\n",
        "## 0.1\n",
        "## [Unreleased]\n### News\n",
        "## [Unreleased]\n### Fixed\n### Added\n",
        "## [Unreleased]\n### Added\n### Added\n",
        "## [Unreleased]\n### Added\n- one\n  two\n  three\n",
        f"## [Unreleased]\n### Added\n- {'x' * LINE_MAX}\n",
        "## [Unreleased]\n### Added\n- one\n- two\n- one\n  again\n",
        f"## [Unreleased]\n### Added\n- {'x' * BEGIN_CHARS} (a)\n- {'x' * BEGIN_CHARS}; b\n",
    ],
)
def test_a_changelog_that_departs_from_its_form_is_found(text: str) -> None:
    assert len(complaints(text)) == 1


def test_entries_of_two_lines_and_headings_in_order_pass() -> None:
    text = "## [Unreleased]\n\n### Added\n\n- one\n  two\n\n### Security\n\n- one\n\n## [0.1.0] - 2026-12-01\n"
    assert complaints(text) == []
