"""The runbook's table of incidents is that of the drills."""

from __future__ import annotations

import re

import pytest

from tests.e2e.drills.incidents import INCIDENTS, table
from tests.support.doc_pages import anchors
from tests.support.repository_rules import ROOT

PAGE = (ROOT / "docs" / "runbook.md").read_text()


def test_the_page_has_the_table_of_the_drills() -> None:
    assert table() in PAGE, "python -m tests.e2e.drills.incidents prints it"


def test_what_helps_is_a_section_of_the_page() -> None:
    for each in INCIDENTS:
        for anchor in re.findall(r"\(#([\w-]+)\)", each.do):
            assert anchor in anchors(PAGE), each.name


def test_each_incident_has_a_drill_of_make_e2e() -> None:
    drills = "".join(path.read_text() for path in (ROOT / "tests" / "e2e" / "drills").glob("test_*.py"))
    assert "pytestmark = pytest.mark.release" not in drills
    assert [each.name for each in INCIDENTS if f'"{each.name}"' not in drills] == []


OTHER_CAUSES = (
    "calls are slow: one takes", "stopped by a signal: `kill -CONT", "held by a debugger", "paced by", "it is whole again at",
    "there is no model", "drained by", "has not answered for",
)  # fmt: skip
"""Words by which `cortex status` names a cause of the second table."""


@pytest.mark.parametrize("words", OTHER_CAUSES)
def test_the_words_of_other_causes_are_those_of_the_sources(words: str) -> None:
    rows = PAGE.partition("| cause | `cortex status` says | do |\n")[2].partition("\n\n")[0]
    sources = (path.read_text() for package in ("actors", "cortex") for path in (ROOT / package).rglob("*.py"))
    assert words in rows and any(words in source for source in sources)
