"""Page of benchmarks: the table matches the results files, and a check finds each kind of mismatch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.results import __main__ as results
from benchmarks.results import records
from benchmarks.results.records import Baseline, Figure, Goal, Invalid, Machine, Result
from tests.support.doc_pages import anchors, links
from tests.support.repository_rules import ROOT

PAGE_LINES_MAX = 150
MACHINE = Machine(2, "a processor", 8, "Linux", "3.11")
SAMPLE = Result(
    "null", "2026-11-27", "abc1234", MACHINE,
    [
        Figure("inline", 1_200, "calls/s", Goal(at_least=1_000), rounds=[1_100, 1_200, 1_300]),
        Figure("added", 0.4, "ms", Goal(at_most=0.3), Baseline("a commit", 0.1, "ms")),
        Figure("left out", 3, "s", table=False),
    ],
)  # fmt: skip
PAGE = f"# A page\n\n{results.BEGIN}\n{results.END}\n\nmore\n"


def _kept(folder: Path, result: Result = SAMPLE, name: str = "") -> Path:
    path = folder / (name or f"{result.date}-{result.benchmark}.json")
    path.write_bytes(msgspec.json.encode(result))
    return path


def test_the_table_of_the_page_matches_the_files() -> None:
    assert results.main(["--check"]) == 0, "run python -m benchmarks.results"


def test_every_results_file_is_of_a_benchmark_that_exists() -> None:
    found = records.read_all()
    assert len(found) > 50
    for name in {result.benchmark for result in found}:
        assert importlib.util.find_spec(f"benchmarks.{name}"), name


def test_the_page_is_short_and_its_links_lead_somewhere() -> None:
    text = results.PAGE.read_text()
    assert len(text.splitlines()) <= PAGE_LINES_MAX
    for target, path, anchor in links("benchmarks/README.md", text):
        assert (ROOT / path).exists(), target
        assert not anchor or anchor in anchors((ROOT / path).read_text()), target


def test_the_table_has_the_newest_figures_of_each_benchmark(tmp_path: Path) -> None:
    older = msgspec.structs.replace(SAMPLE, date="2026-11-26")
    for result in (SAMPLE, older, msgspec.structs.replace(older, benchmark="http")):
        _kept(tmp_path, result)
    lines = results.table(records.read_all(tmp_path)).splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == [
        "[`http`](results/2026-11-26-http.json), 2026-11-26",
        "",
        "[`null`](results/2026-11-27-null.json), 2026-11-27",
        "",
    ]
    assert lines[2].endswith("| inline | 1,200 calls/s (1,100 to 1,300) | ≥ 1,000 | yes |  |")
    assert lines[3].endswith("| added | 0.4 ms | ≤ 0.3 | **no** | a commit: 0.1 ms |")
    days = results.history(records.read_all(tmp_path), "null").splitlines()[2:]
    assert [line.split()[1] for line in days] == ["2026-11-26"] * 3 + ["2026-11-27"] * 3


def test_a_table_that_does_not_match_is_found_and_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, path = tmp_path / "README.md", _kept(tmp_path)
    page.write_text(PAGE)
    assert results.main(["--check"], page, tmp_path) == 1
    assert "run python -m benchmarks.results" in capsys.readouterr().err
    assert page.read_text() == PAGE
    assert results.main([], page, tmp_path) == 0
    assert results.main(["--check"], page, tmp_path) == 0
    assert page.read_text().startswith("# A page\n\n<!--") and page.read_text().endswith("-->\n\nmore\n")
    path.write_bytes(path.read_bytes().replace(b"1200", b"1201"))
    assert results.main(["--check"], page, tmp_path) == 1


@pytest.mark.parametrize("text", ["", results.BEGIN, f"{results.END}{results.BEGIN}", PAGE + PAGE])
def test_a_page_without_its_markers_is_left_alone(text: str, tmp_path: Path) -> None:
    _kept(tmp_path)
    (tmp_path / "README.md").write_text(text)
    assert results.main([], tmp_path / "README.md", tmp_path) == 1
    assert (tmp_path / "README.md").read_text() == text


def _changed(**fields: Any) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(SAMPLE)
    return built | fields


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("2026-11-26-null.json", _changed(), "name it 2026-11-27-null.json"),
        ("2026-11-27-null.json", _changed(date="yesterday"), "Invalid isoformat"),
        ("2026-11-27-null.json", _changed(figures=[]), "needs figures"),
        ("2026-11-27-null.json", _changed(figures=[_changed()["figures"][0]] * 2), "a name of its own"),
        ("2026-11-27-null.json", _changed(figure=[]), "unknown field `figure`"),
        ("2026-11-27-null.json", _changed(machine={}), "missing required field"),
    ],
)  # fmt: skip
def test_a_broken_results_file_is_found(name: str, content: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(msgspec.json.encode(content))
    with pytest.raises(Invalid, match=words):
        records.read_all(tmp_path)


def test_goals_include_their_bounds() -> None:
    assert [Goal(at_least=1, at_most=2).reached(value) for value in (0.9, 1, 2, 2.1)] == [False, True, True, False]
    assert Goal().reached(5)
