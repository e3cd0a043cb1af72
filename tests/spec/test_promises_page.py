"""Page of promises: each of its sentences and rows names the tests that hold it, in ``promises.txt``, and they exist.

The table of findings in ``tests/adversary/findings.md`` names its tests in the same way.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.support.repository_rules import ROOT

TESTS = ROOT / "tests"
REFERENCE = re.compile(r"[\w/]+\.py(?:::test_\w+)?")


def _sentences(text: str) -> list[str]:
    """Return the sentences of a page, and the rows of its tables, in order."""
    found: list[str] = []
    paragraph: list[str] = []

    def end() -> None:
        whole = " ".join(paragraph).removeprefix("> ")
        paragraph.clear()
        found.extend(filter(None, re.split(r"(?<=[.!?])\s+(?=[A-Z`\[\-*(])", whole)))

    for line in text.splitlines():
        row, item = line.startswith("|"), line.startswith("- ")
        if not line.strip() or line.startswith("#") or row or item:
            end()
        if row and set(line) - set("|- "):
            found.append(line)
        elif line.strip() and not row and not line.startswith(("#", "    ")):
            paragraph.append(line.removeprefix("- ").strip())
    end()
    return found


def _named() -> dict[str, list[str]]:
    """Return the lines of ``promises.txt`` by the first words above them."""
    found: dict[str, list[str]] = {}
    for line in (TESTS / "spec" / "promises.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        if line.startswith("- ") or REFERENCE.fullmatch(line):
            found[list(found)[-1]].append(line)
        else:
            assert line not in found, f"two entries for {line!r}"
            found[line] = []
    return found


@cache
def _functions(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.M))


def _missing(references: list[str]) -> list[str]:
    gone = []
    for reference in references:
        name, _, function = reference.partition("::")
        path = TESTS / name
        if not path.is_file() or (function and function not in _functions(path)):
            gone.append(reference)
    return gone


def test_each_sentence_of_the_promises_names_its_tests_and_none_names_what_is_gone() -> None:
    named, unused = _named(), set(_named())
    for sentence in _sentences((ROOT / "docs" / "promises.md").read_text()):
        mine = [words for words in named if sentence.startswith(words)]
        assert mine, f"no test is named for: {sentence[:80]}"
        longest = max(mine, key=len)
        assert named[longest], f"nothing is named for: {longest}"
        unused.discard(longest)
    assert not unused, f"there is no such sentence any more: {sorted(unused)}"


def test_every_test_that_a_promise_or_a_finding_names_exists() -> None:
    promised = [line for lines in _named().values() for line in lines if not line.startswith("- ")]
    found = REFERENCE.findall((TESTS / "adversary" / "findings.md").read_text())
    assert len(promised) > 100 and len(found) > 40
    assert _missing([*promised, *found]) == []


def test_each_finding_has_a_row_with_its_tests() -> None:
    rows = [line for line in (TESTS / "adversary" / "findings.md").read_text().splitlines() if line.startswith("| ")]
    names = {row.split("|")[1].strip(): row for row in rows}
    wanted = [*(f"A{number}" for number in range(1, 21)), "D1", "D2"]
    assert [name for name in wanted if not REFERENCE.search(names.get(name, ""))] == []
