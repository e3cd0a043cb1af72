"""Full-screen view of ``top``: keys, cursor, scrolling. The content is ``view.screen``; the view changes no job."""

from __future__ import annotations

import asyncio
import os
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from actors.common.errors import UserError
from actors.top.layout import TableRow, TopTable, cell, columns_shown, heights
from actors.top.sources import TopSnapshot
from actors.top.text_output import curve_lines
from actors.top.view import SORTS, Screen, screen

LOOK_S = 1.0
"""Seconds between two looks."""
CURVES = 6
"""Lines for the curves of a route."""
HELP = " q quit  enter details  tab next table  up/down choose  s sort  p pause  r look"
_STYLES = {"good": "green", "warn": "yellow", "bad": "bold red", "dim": "dim"}
_STATE = 1
"""Place of the state column, in every table; only this column is coloured."""
_ORDER = ("jobs", "routes", "curves", "actors", "nodes")


class RowDetails(ModalScreen[None]):
    """Details of one row."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "back", "Back"), Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
    ]  # fmt: skip
    CSS = """
    Particulars { align: center middle; }
    Particulars VerticalScroll { width: 90%; max-width: 120; height: auto; max-height: 90%; border: round $primary;
                                 padding: 0 1; background: $surface; }
    Particulars #keys { dock: bottom; height: 1; text-style: reverse; }
    """

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        self.text = Static("", id="particulars")

    def compose(self) -> ComposeResult:
        """Yield a scrolling frame."""
        with VerticalScroll():
            yield self.text
        yield Static(" esc back  up/down scroll", id="keys")

    def show_row(self, row: TableRow | None) -> None:
        """Show the present row; a row that is gone stays as it was."""
        if row is None:
            return
        wide = max(len(name) for name, _ in row.details)
        found = Text()
        for name, text in row.details:
            found.append(f"{name.ljust(wide)}  ", "bold")
            found.append(f"{text}\n")
        self.text.update(found)

    def action_scroll(self, lines: int) -> None:
        """Scroll up or down."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_back(self) -> None:
        """Return to the tables."""
        self.dismiss()


class TableView(DataTable[Text]):
    """Table widget that keeps its cursor while rows change."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name, cursor_type="row", zebra_stripes=False, cell_padding=1)
        self.table: TopTable | None = None
        self._form: tuple[Any, ...] = ()

    def put(self, table: TopTable, width: int) -> None:
        """Set the rows; only changed cells are drawn again."""
        self.table = table
        shown = columns_shown(table, max(10, width - 2 - 1))
        keys = tuple(row.key for row in table.rows)
        form = (tuple(shown), keys)
        if form == self._form:
            for row in table.rows:
                for place, wide in shown:
                    drawn = _cell(table, row, place, wide)
                    if self.get_cell(row.key, str(place)) != drawn:
                        self.update_cell(row.key, str(place), drawn)
            return
        chosen, top = self.chosen(), self.scroll_y
        self.clear(columns=True)
        for place, wide in shown:
            column = table.columns[place]
            self.add_column(Text(cell(column.title, wide, column.right)), width=wide, key=str(place))
        for row in table.rows:
            self.add_row(*(_cell(table, row, place, wide) for place, wide in shown), key=row.key)
        self._form = form
        if chosen in keys:
            self.move_cursor(row=keys.index(chosen), animate=False, scroll=False)
            self.scroll_to(y=top, animate=False)

    def chosen(self) -> str:
        """Return the key of the row at the cursor; empty if there is none."""
        keys = self._form[1] if self._form else ()
        return str(keys[self.cursor_row]) if 0 <= self.cursor_row < len(keys) else ""


def _cell(table: TopTable, row: TableRow, place: int, wide: int) -> Text:
    style = _STYLES.get(row.level, "") if place == _STATE else ""
    return Text(cell(row.cells[place], wide, table.columns[place].right), style)


class TopApp(App[None]):
    """Application of ``top``. ``source`` has ``look()`` and may have ``close()``; ``cluster``: address that is looked
    at."""

    TITLE = "cortex top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Quit"), Binding("tab", "app.focus_next", "Next table"),
        Binding("enter", "open", "Details"), Binding("s", "sort", "Sort"), Binding("p", "pause", "Pause"),
        Binding("r", "look_now", "Look now"),
    ]  # fmt: skip
    CSS = """
    Screen { layout: vertical; overflow: hidden; }
    #title { height: 1; text-style: bold; }
    #trouble { height: 1; color: $error; display: none; }
    #curves { height: 6; }
    #foot { dock: bottom; height: 2; }
    #about, #help { height: 1; }
    #help { text-style: reverse; }
    Listing { height: 4; overflow-x: hidden; scrollbar-size: 0 1; background: $background; }
    Listing > .datatable--header { background: $background; color: $text; text-style: bold underline; }
    Listing > .datatable--cursor { background: $background; color: $text; text-style: none; }
    Listing:focus > .datatable--cursor { background: $background; color: $text; text-style: reverse; }
    """

    def __init__(self, source: Any, cluster: str = "") -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"  # colours of the terminal, light or dark
        self._source = source
        self._cluster = cluster
        self._sort = 0
        self._paused = False
        self._seen: TopSnapshot | None = None
        self._shown: Screen | None = None
        self._look_lock: asyncio.Lock = asyncio.Lock()

    def compose(self) -> ComposeResult:
        """Yield the widgets from top to bottom."""
        yield Static("cortex top: looking …", id="title")
        yield Static("", id="trouble")
        yield TableView("jobs")
        yield TableView("routes")
        yield Static("", id="curves")
        yield TableView("actors")
        yield TableView("nodes")
        with Vertical(id="foot"):
            yield Static("", id="about")
            yield Static(HELP, id="help")

    async def on_mount(self) -> None:
        """Look at once, and then every second."""
        self.query_one("#jobs").focus()
        self.set_interval(LOOK_S, self.look)
        self.call_later(self.look)

    async def look(self) -> None:
        """Take a look, unless the last one still runs."""
        if self._paused or self._look_lock.locked():
            return
        async with self._look_lock:
            try:
                self._seen = await self._source.look()
            except UserError as error:
                self._show_problem(str(error))
                return
        self.redraw()

    def redraw(self) -> None:
        """Draw the last known state."""
        if self._seen is None:
            return
        shown = self._shown = screen(self._seen, self._cluster, SORTS[self._sort])
        paused = "  (paused)" if self._paused else ""
        self._text("#title", f"{shown.title}  by {SORTS[self._sort]}{paused}  {shown.where}")
        self._show_problem(shown.trouble)
        width = self.size.width
        for table in shown.tables:
            self.query_one(f"#{table.name}", TableView).put(table, width)
        self._draw_curves()
        self._show_chosen()
        self._share_out()
        front = self.screen_stack[-1]
        if isinstance(front, RowDetails):
            front.show_row(self._row(front.key))

    def on_resize(self, event: Resize) -> None:
        """Fit columns and heights to the new size."""
        self.call_after_refresh(self.redraw)

    def on_descendant_focus(self) -> None:
        """Give the most room to the focused table."""
        self._share_out()
        self._show_chosen()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Draw the curves of the highlighted route, and describe the chosen row."""
        if event.data_table.id == "routes":
            self._draw_curves()
        self._show_chosen()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the details of a row after Enter or a click."""
        if event.row_key.value:
            self._open(event.row_key.value)

    # -- keys --------------------------------------------------------------------------------------------------------

    def action_open(self) -> None:
        """Open the details of the chosen row."""
        if isinstance(self.focused, TableView) and (key := self.focused.chosen()):
            self._open(key)

    def action_sort(self) -> None:
        """Sort jobs by the next key."""
        self._sort = (self._sort + 1) % len(SORTS)
        self.redraw()

    def action_pause(self) -> None:
        """Stop or resume updates."""
        self._paused = not self._paused
        self.redraw()

    async def action_look_now(self) -> None:
        """Look at once."""
        await self.look()

    # -- parts -------------------------------------------------------------------------------------------------------

    def _open(self, key: str) -> None:
        if self._row(key) is None:
            return
        opened = RowDetails(key)
        self.push_screen(opened)
        self.call_after_refresh(lambda: opened.show_row(self._row(key)))

    def _row(self, key: str) -> TableRow | None:
        tables = self._shown.tables if self._shown is not None else ()
        return next((row for table in tables for row in table.rows if row.key == key), None)

    def _draw_curves(self) -> None:
        if self._shown is None:
            return
        routes = self.query_one("#routes", TableView)
        row = self._row(routes.chosen())
        found = self._shown.curves.get(row.key, ()) if row is not None else ()
        text = "\n".join(curve_lines(row.cells[0], found, self.size.width - 2, _ascii_only())) if row and found else ""
        self.query_one("#curves", Static).update(Text(text, no_wrap=True, overflow="ellipsis"))

    def _show_chosen(self) -> None:
        """Describe the chosen row, which a narrow table shows only in part."""
        chosen = self.focused.chosen() if isinstance(self.focused, TableView) else ""
        row = self._row(chosen)
        self._text("#about", f" {row.about}" if row is not None and row.about else "")

    def _share_out(self) -> None:
        """Divide the lines of the screen among the sections."""
        if self._shown is None:
            return
        wanted = {}
        for table in self._shown.tables:
            wanted[table.name] = 1 + len(table.rows) + 1 if table.rows else 0
        wanted["curves"] = CURVES + 1 if any(self._shown.curves.values()) else 0
        wanted["jobs"] = max(2, wanted["jobs"])
        focused = self.focused.id if self.focused is not None and self.focused.id in wanted else ""
        given = heights(self.size.height - 3, {name: wanted[name] for name in _ORDER}, focused or "")
        for name, lines in given.items():
            section = self.query_one(f"#{name}")
            section.display = lines > 0
            section.styles.height = max(1, lines)

    def _show_problem(self, text: str) -> None:
        found = self.query_one("#trouble", Static)
        found.display = bool(text)
        self._text("#trouble", text)

    def _text(self, where: str, text: str) -> None:
        self.query_one(where, Static).update(Text(text, no_wrap=True, overflow="ellipsis"))


def _ascii_only() -> bool:
    """Return True if the locale says that the terminal knows only ASCII."""
    text = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or "UTF-8"
    return text in ("C", "POSIX")


class ThreadedSource:
    """Source that reads files in a thread, so that the view keeps answering keys."""

    def __init__(self, source: Any) -> None:
        self._source = source

    async def look(self) -> TopSnapshot:
        """Return the present state."""
        seen: TopSnapshot = await asyncio.to_thread(self._source.look)
        return seen
