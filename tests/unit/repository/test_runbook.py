"""The runbook's table of incidents is that of the drills."""

from __future__ import annotations

import re

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


def test_each_incident_has_a_drill() -> None:
    drills = "".join(path.read_text() for path in (ROOT / "tests" / "e2e" / "drills").glob("test_*.py"))
    assert [each.name for each in INCIDENTS if f'"{each.name}"' not in drills] == []
