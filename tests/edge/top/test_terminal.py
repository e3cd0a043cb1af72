"""The full screen of ``top`` under its keys, by Textual's own pilot; a real terminal is in ``tests/e2e``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from textual.widgets import Static

from actors.common.errors import UserError
from actors.top.terminal import RowDetails, TableView, TopApp
from tests.support.dashboard_samples import NOW_S, cluster, job, seen
from tests.support.patience import PATIENCE_S


class Sight:
    """A source that shows what it is given, and counts how often it is looked at."""

    def __init__(self, *shown: Any) -> None:
        self.shown = list(shown)
        self.looked = 0

    async def look(self) -> Any:
        self.looked += 1
        now = self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]
        if isinstance(now, Exception):
            raise now
        return now


BUSY = seen(
    job("aaa", waits="the breaker is open"), job("bbb", "complete", "journal", 60.0), job("ccc", "failed", "journal", 90.0),
    clusters=(cluster(), cluster("process 8 on here, inline", "cortex.2")),
)  # fmt: skip


def _text(app: TopApp, where: str) -> str:
    return str(app.query_one(where, Static).render())


def _screen(app: TopApp) -> str:
    return "\n".join("".join(segment.text for segment in line) for line in app.screen._compositor.render_strips())


async def _settled(pilot: Any, app: TopApp) -> None:
    await app.look()
    await pilot.pause()
    await pilot.pause()


async def _until(pilot: Any, holds: Callable[[], bool]) -> None:
    """Wait until the screen shows what a key, or a look, brought about. The pilot itself takes an app for idle that
    uses no processor for a moment, as one does that waits for its turn on a busy machine.
    """
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await pilot.pause()


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (60, 12), (40, 8), (200, 60)])
async def test_every_size_shows_the_jobs_and_the_keys(size):
    app = TopApp(Sight(BUSY))
    async with app.run_test(size=size) as pilot:
        await _settled(pilot, app)
        wanted = ["cortex top", "aaa", "q quit", *["ACTOR"] * (size[1] >= 12), *["answered"] * (size[1] >= 24)]
        await _until(pilot, lambda: all(text in _screen(app) for text in wanted))
        shown = _screen(app)
        assert ("ACTOR" in shown) == (size[1] >= 12)
        assert ("answered" in shown) == (size[1] >= 24)


async def test_it_takes_the_new_size_of_its_terminal():
    app = TopApp(Sight(BUSY))
    async with app.run_test(size=(160, 50)) as pilot:
        await _settled(pilot, app)
        await _until(pilot, lambda: "P50 MS/TOK" in _screen(app))
        await pilot.resize_terminal(60, 14)
        await _settled(pilot, app)
        await _until(pilot, lambda: "P50 MS/TOK" not in _screen(app))
        await _until(pilot, lambda: all(len(line) <= 60 for line in _screen(app).split("\n")))


async def test_enter_opens_what_is_known_of_the_chosen_row_and_escape_closes_it():
    app = TopApp(Sight(BUSY))
    async with app.run_test(size=(80, 24)) as pilot:
        await _settled(pilot, app)
        await _until(pilot, lambda: _text(app, "#about").strip() == "aaa: the breaker is open")
        await pilot.press("down")
        await _until(pilot, lambda: _text(app, "#about").strip().startswith("bbb:"))
        await pilot.press("enter")
        await _until(pilot, lambda: isinstance(app.screen, RowDetails) and app.screen.is_mounted)
        await _settled(pilot, app)
        assert isinstance(app.screen, RowDetails)
        assert "complete" in str(app.screen.text.render())
        await pilot.press("escape")
        await _until(pilot, lambda: not isinstance(app.screen, RowDetails))


async def test_tab_goes_to_the_next_table_which_then_has_the_room():
    app = TopApp(Sight(BUSY))
    async with app.run_test(size=(80, 20)) as pilot:
        await _settled(pilot, app)
        await _until(pilot, lambda: "aaa" in _screen(app) and app.query_one("#actors", TableView).size.height > 0)
        height = app.query_one("#actors", TableView).size.height
        await pilot.press("tab")
        await _until(pilot, lambda: app.focused is not None and app.focused.id == "routes")
        await _until(pilot, lambda: "breaker closed" in _text(app, "#about"))
        await pilot.press("tab")
        await _until(pilot, lambda: app.focused is not None and app.focused.id == "actors")
        await _until(pilot, lambda: app.query_one("#actors", TableView).size.height > height)


async def test_the_curves_are_those_of_the_chosen_route():
    quiet = cluster("process 8 on here, inline", "cortex.2")
    for readings in quiet.status["routes"].values():
        readings["series"]["answered"] = [0, 0, 77]
    app = TopApp(Sight(seen(job(), clusters=(cluster(), quiet))))
    async with app.run_test(size=(100, 40)) as pilot:
        await _settled(pilot, app)
        await _until(pilot, lambda: "/s" in _text(app, "#curves"))
        assert "77/s" not in _text(app, "#curves")
        await pilot.press("tab", "down")
        await _until(pilot, lambda: "77/s" in _text(app, "#curves"))


async def test_the_cursor_stays_on_its_row_when_the_rows_change():
    first = seen(job("aaa"), job("bbb"))
    later = seen(job("000", age_s=0.1), job("aaa"), job("bbb"))
    source = Sight(first)
    app = TopApp(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await _until(pilot, lambda: app.query_one("#jobs", TableView).row_count == 2)
        await pilot.press("down")
        await _until(pilot, lambda: app.query_one("#jobs", TableView).chosen() == "bbb")
        source.shown = [later]
        await _settled(pilot, app)
        await _until(pilot, lambda: app.query_one("#jobs", TableView).row_count == 3)
        assert app.query_one("#jobs", TableView).chosen() == "bbb"


async def test_s_sorts_and_p_holds_still():
    source = Sight(BUSY)
    app = TopApp(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await _settled(pilot, app)
        await _until(pilot, lambda: _text(app, "#title").endswith("by latest  /state"))
        await pilot.press("s")
        await _until(pilot, lambda: _text(app, "#title").endswith("by name  /state"))
        await pilot.press("p")
        await _until(pilot, lambda: _text(app, "#title").endswith("(paused)  /state"))
        looked = source.looked
        await app.look()
        assert source.looked == looked
        await pilot.press("p", "r")
        await _until(pilot, lambda: source.looked > looked)


async def test_a_folder_that_cannot_be_read_is_said_and_it_goes_on():
    source = Sight(UserError("the folder is gone"))
    app = TopApp(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await _until(pilot, lambda: bool(app.query_one("#trouble", Static).display))
        source.shown = [BUSY]
        await _settled(pilot, app)
        await _until(pilot, lambda: "aaa" in _screen(app) and not app.query_one("#trouble", Static).display)


async def test_q_ends_it():
    app = TopApp(Sight(BUSY))
    async with app.run_test() as pilot:
        await pilot.press("q")
    assert app.return_code == 0


async def test_without_colour_nothing_is_lost(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    opened = {"state": "open", "until_s": NOW_S + 12, "why": "8 of 10 failed"}
    app = TopApp(Sight(seen(job(), clusters=(cluster(breaker=opened),))))
    async with app.run_test(size=(100, 30)) as pilot:
        await _settled(pilot, app)
        await _until(pilot, lambda: "open, probed" in _screen(app))
