"""Results of a job at rest: a late reply takes the place of an earlier result that a retry has not replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.driver.driver import Driver
from actors.history.results import PastResults, ResultBuffer, listed
from actors.journal.journal import StateFolder
from tests.edge.support.virtual_clock import in_virtual_time

OUTCOME = {"outcome": "partial", "broken": "", "reopened": 1}


class RestingChannel:
    """Channel of a job at rest after a retry: a list of results, and restored ones behind them. ``late`` results come
    as it is to be sealed. ``deaths``: times that it is restarted after that.
    """

    def __init__(self, listed: list[str], restored: list[str], late: list[str], deaths: int = 0) -> None:
        self.listed, self.restored, self.late, self.deaths = listed, restored, late, deaths
        self.sealed = False

    async def ask(self, method: str, *args: Any) -> Any:
        if method == "results":
            if self.sealed and self.deaths:
                self.sealed, self.deaths = False, self.deaths - 1
            index = args[0]
            given = [*self.listed, *(self.restored if self.sealed else [])]
            return msgspec.msgpack.encode(list(enumerate(given))[index:])
        if method == "seal":
            self.listed, self.late = [*self.listed, *self.late], []
            self.sealed = args[0] == len(self.listed) + len(self.restored)
            return self.sealed
        assert method == "written"
        return None

    async def refresh(self) -> dict[str, Any]:
        return self.facts

    @property
    def facts(self) -> dict[str, Any]:
        return OUTCOME | {
            "results": len(self.listed) + len(self.restored), "results_restored": len(self.restored),
        }  # fmt: skip


class ListSink:
    def __init__(self, cuts_back: bool) -> None:
        self.cuts_back, self.values = cuts_back, list[str]()

    def write(self, values: list[str]) -> None:
        self.values += values

    def flush(self) -> tuple[int, int]:
        return len(self.values), 0


@pytest.mark.parametrize("deaths", [0, 1, 2])
@pytest.mark.parametrize("cuts_back", [True, False])
@pytest.mark.parametrize("late", [[], ["c"], ["c", "d"]])
@pytest.mark.parametrize("restored", [[], ["old"], ["old", "older"]])
@in_virtual_time
async def test_each_result_is_written_once_whenever_it_comes(
    restored: list[str], late: list[str], cuts_back: bool, deaths: int
) -> None:
    """A paid row was missing, and the one that failed before was there twice."""
    channel, sink = RestingChannel(["a", "b"], restored, late, deaths), ListSink(cuts_back)

    class Seen(Driver):
        """Driver that has nothing but a channel and a sink."""

        def __init__(self) -> None:
            self._sink, self._edition = sink, 1

        _facts = property(lambda self: channel.facts)  # type: ignore[assignment]
        _ask = staticmethod(channel.ask)  # type: ignore[assignment]
        _await = staticmethod(channel.ask)  # type: ignore[assignment]
        refresh = staticmethod(channel.refresh)  # type: ignore[assignment]

    await Seen()._drain(0)
    assert sink.values == ["a", "b", *late, *(restored if cuts_back else [])]
    assert channel.sealed


@pytest.mark.parametrize(("end", "index", "read"), [(2, 0, [0, 1]), (1, 0, [0]), (3, 0, [0, 1, 2]), (2, 2, []), (3, 2, [2])])
async def test_no_result_beyond_the_end_is_read_from_a_journal(
    end: int, index: int, read: list[int], tmp_path: Path
) -> None:
    class Past(PastResults):
        def __init__(self) -> None: ...

        def read(self, index: int) -> list[tuple[int, Any]]:
            return [(at, f"r{at}") for at in range(index, 3)]

    journal = StateFolder(tmp_path).prepare().journal("j", create=True)
    found = await listed(journal, ResultBuffer(4), Past(), index, end)
    journal.close()
    assert [at for at, _ in found] == read
