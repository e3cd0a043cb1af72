"""The page of a report: whole by itself, readable, and nothing of the user's in it can be taken for anything but text."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter, namedtuple
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.cli.inspection.report import _ending
from actors.report.charts import charts
from actors.report.counters import FailureCount
from actors.report.page import NO_CHARTS, island, page, plotly, report
from actors.report.palette import DARK, GROUNDS, LIGHT, MARKS_DARK, MARKS_LIGHT, PATTERNS, TEXTS, contrast
from actors.report.sentences import MEANINGS, ONSET_CHANCE, onset_s, sentences
from actors.report.sketches import BinnedSeries, TimeAxis
from cortex.state import events
from cortex.values.limits import Limits
from policies.failures.failure import FailureKind
from tests.edge.report.test_aggregate import folded, story_of_all_kinds
from tests.support.journal_builder import Book, row

HOSTILE = "</script><script>alert(1)</script><img src=//evil.test/x onerror=alert(2)> \u2028 ' \" & <!-- ]]>"
VOID = frozenset("meta link input br img hr".split())


class Seen(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.wrong: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, text: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + text

    def told(self) -> dict[str, Any]:
        """The JSON beside the text."""
        whole = next(text for text in re.findall(r'id="told">(.*?)</script>', self.rawdata_all, re.S))
        return json.loads(whole)

    def feed(self, text: str) -> None:
        self.rawdata_all = text
        super().feed(text)


def made(book: Book, text: bool = True, library: bytes | None = b"window.Plotly={}") -> str:
    """The page of a job."""
    figures, found = folded(book.folder, unnamed=not text)
    return page(report(found, _ending(book.folder, "job", found[0], figures), figures, text), library)


def hostile(folder: Path) -> Book:
    """A job in which everything that is not ours is meant to break out."""
    book = Book(folder, places={"output": HOSTILE})
    book.turn(
        events.PermitsGranted(9), events.RowsRead((row(HOSTILE, HOSTILE), row("r1", HOSTILE), row("r2")), 0, 9, True)
    )
    book.turn(book.broke(1, kind="rejected", said=HOSTILE, status=400), book.answered(2, text=HOSTILE, by=HOSTILE))
    book.turn(events.Stopped(HOSTILE, "drain"))
    return book


def test_a_page_is_whole_and_well_formed(tmp_path: Path) -> None:
    seen = Seen(made(story_of_all_kinds(tmp_path)))
    assert not seen.wrong and not seen.open
    ids = [each["id"] for _, each in seen.tags if "id" in each]
    assert len(ids) == len(set(ids))
    targets = [each["href"] for tag, each in seen.tags if tag == "a"]
    assert targets and all(str(target).removeprefix("#") in ids for target in targets)
    heads = [tag for tag, _ in seen.tags if re.fullmatch(r"h[1-6]", tag)]
    assert heads[0] == "h1" and heads.count("h1") == 1
    assert all(int(after[1]) <= int(before[1]) + 1 for before, after in pairwise(heads))
    labelled = [each["aria-labelledby"] for _, each in seen.tags if "aria-labelledby" in each]
    assert set(labelled) <= set(ids)
    assert all(each.get("scope") for tag, each in seen.tags if tag == "th")
    assert next(each for tag, each in seen.tags if tag == "html")["lang"] == "en"


def test_a_page_asks_nothing_of_the_network(tmp_path: Path) -> None:
    library = plotly()
    text = made(hostile(tmp_path), library=library)
    seen = Seen(text)
    for _, attributes in seen.tags:
        for name in ("src", "href", "action", "srcset", "poster", "data", "formaction", "background"):
            assert attributes.get(name) in (None, "data:,") or str(attributes[name]).startswith("#")
    policy = next(each["content"] for tag, each in seen.tags if tag == "meta" and "http-equiv" in each)
    assert "default-src 'none'" in str(policy) and "connect-src" not in str(policy)
    style = seen.texts["style"]
    assert "url(" not in style and "@import" not in style and "http" not in style


def test_what_is_not_ours_stays_text(tmp_path: Path) -> None:
    for text in (True, False):
        shown = made(hostile(tmp_path / str(text)), text=text)
        seen = Seen(shown)
        assert not seen.wrong and not any("onerror" in each for _, each in seen.tags)
        assert [tag for tag, _ in seen.tags].count("script") == 3
        beside = shown.partition('id="told">')[2].partition("</script>")[0]
        assert not set("<>&\u2028\u2029") & set(beside)
        outside = shown.replace(beside, "").replace("&lt;/script&gt;&lt;script&gt;alert(1)", "")
        assert "alert(1)" not in outside
        assert seen.told()["lists"]["failed"][0]["name"].startswith("</script>")


def test_no_text_means_none(tmp_path: Path) -> None:
    book = Book(tmp_path)
    book.turn(events.PermitsGranted(9), events.RowsRead((row("key-1", "a secret question"),), 0, 9, True))
    book.turn(book.answered(1, text="a secret answer"))
    with_text, without = made(book), made(book, text=False)
    assert with_text.count("a secret question") == 2 and with_text.count("a secret answer") == 1
    assert "secret" not in without and "key-1" in without


def test_nothing_of_the_environment_enters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-api03-do-not-show")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=do-not-show")
    assert "do-not-show" not in made(story_of_all_kinds(tmp_path))


def test_without_the_library_the_charts_are_tables(tmp_path: Path) -> None:
    text = made(story_of_all_kinds(tmp_path), library=None)
    assert 'id="library"' not in text and NO_CHARTS.replace("'", "&#39;") in text
    assert len(Seen(text).told()["charts"]) >= 6


def test_a_page_says_in_words_what_happened(tmp_path: Path) -> None:
    book = story_of_all_kinds(tmp_path)
    text = Seen(made(book)).texts["p"]
    for words in (
        "the program batch on m at provider.test (and spare at other.test)", f"6 of {book.k.ledger.attempts} attempts failed", "The breaker of m at provider.test opened once", "Half of the answers came within",
        "1 call was answered from memory",
    ):  # fmt: skip
        assert words in text, words


@pytest.mark.parametrize(
    ("answers", "share", "kind", "onset"),
    [
        (200, 3, "rejected", True),  # a provider that refuses a third of good rows since a minute
        (200, 1, "empty", True),  # all of them
        (200, 3, "faulty", False),  # the program's own code
        (3, 1, "rejected", False),  # a few good rows at the head of the input
        (12, 3, "rejected", False),  # of 13 rows with a third bad ones, the last may be the first bad one
    ],
)
def test_rows_that_fail_since_a_minute_may_be_the_providers(
    tmp_path: Path, answers: int, share: int, kind: str, onset: bool
) -> None:
    """A row that was good a minute ago is not put right: the job is drained, and the row retried."""
    book = Book(tmp_path, limits=Limits(concurrency=500))
    count = answers + 60
    book.turn(events.PermitsGranted(500), events.RowsRead(tuple(row(f"r{i}") for i in range(count)), 0, count * 9, True))
    for number in range(1, count + 1):
        bad = number > answers and number % share == 0
        book.turn(book.broke(number, kind=kind, said="no", status=400) if bad else book.answered(number))
    (text,) = [each for each in _said(book) if "most frequent permanent failure" in each]
    assert ("The first was at " in text) == onset
    assert (f"`cortex retry job --kind {kind}`" in text) == onset
    assert MEANINGS[kind][1] in text, "the advice for rows that are faulty stays"


def _onsets(order: random.Random, failed: int, attempts: int) -> float:
    """Return the share of jobs of a thousand rows, some of which fail by chance, of which an onset is claimed."""
    axis, jobs, claimed = TimeAxis(1.0, 1_001.0, 200), 1_000, 0
    for _ in range(jobs):
        bad = sorted(order.sample(range(1_000), failed))
        answered = BinnedSeries(axis)
        for place, count in Counter(number // 5 for number in bad).items():
            answered.values[place] -= count
        answered.values = [value + 5 for value in answered.values]
        failures = {"malformed": FailureCount(failed * attempts, 1.0 + bad[0], 1.0 + bad[-1])}
        figures = SimpleNamespace(answered=answered, failures=failures)
        claimed += onset_s("malformed", figures, failed) is not None  # type: ignore[arg-type]
    return claimed / jobs


@pytest.mark.parametrize("attempts", [1, 4])
@pytest.mark.parametrize("failed", [1, 2, 3, 5, 20])
def test_of_rows_that_fail_by_chance_hardly_ever_an_onset_is_claimed(failed: int, attempts: int) -> None:
    """Of a thousand jobs one claim is to be expected; five or more have a chance of 0.4 %."""
    assert _onsets(random.Random(7), failed, attempts) <= 4 * ONSET_CHANCE


@pytest.mark.parametrize("full", [True, False])
def test_a_report_names_the_cause_that_status_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """The journal of a job on a full disk could not take the reason."""
    book = story_of_all_kinds(tmp_path)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(9, 9, 0 if full else 1 << 30))
    (text,) = [each for each in _said(book) if "can be resumed" in each]
    assert (f"The disk of {book.folder.path} is full: make room on it, then resume." in text) == full


def _said(book: Book) -> list[str]:
    figures, found = folded(book.folder)
    return sentences(_ending(book.folder, "job", found[0], figures), figures, found[0])


def test_an_island_holds_anything() -> None:
    assert json.loads(island({"a": HOSTILE})) == {"a": HOSTILE}


def test_every_kind_of_failure_has_its_words() -> None:
    assert set(MEANINGS) == {kind.value for kind in FailureKind}


@pytest.mark.parametrize(("theme", "marks"), [(LIGHT, MARKS_LIGHT), (DARK, MARKS_DARK)])
def test_contrast_is_enough(theme: dict[str, str], marks: dict[str, str]) -> None:
    """WCAG 2.2 AA: 4.5 for text (1.4.3), 3 for what a chart is made of and for the focus (1.4.11)."""
    for ground in GROUNDS:
        for name in TEXTS:
            assert contrast(theme[name], theme[ground]) >= 4.5, (name, ground)
        assert contrast(theme["focus"], theme[ground]) >= 3
    for name, colour in marks.items():
        assert contrast(colour, theme["ground"]) >= 3, name
    assert set(theme) == set(LIGHT) and set(marks) == set(MARKS_LIGHT) >= set(PATTERNS)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_colours_that_look_alike_to_some_differ_in_their_filling() -> None:
    """Pairs that people with a common colour deficiency may take for one another, in one stacked chart."""
    assert (
        len({PATTERNS[kind] for kind in ("answered", "throttled", "overloaded", "transient", "timed_out", "lost")}) == 6
    )


def test_very_many_waits_are_drawn_as_the_bins_that_they_fill(tmp_path: Path) -> None:
    book = Book(tmp_path)
    for _ in range(60):
        book.turn(events.PermitsGranted(5), after_s=7.0)
        book.turn(events.PermitsGranted(5, starts=0, why="the provider asks to wait"), after_s=3.0)
    for _ in range(60):
        book.turn(events.PermitsGranted(5), after_s=1.0)
        book.turn(events.PermitsGranted(5, starts=0, why="the provider asks to wait"), after_s=9.0)
    figures, _ = folded(book.folder)
    bands = next(chart for chart in charts(figures, 100, None) if chart["id"] == "calls")["bands"]
    assert sum(period.state == "held" for period in figures.periods) == 120
    held_s = sum(band["to"] - band["from"] for band in bands) * 60
    assert len(bands) < 60 and 0.4 * 1_200 < held_s < 0.75 * 1_200  # the truth: 720 s
