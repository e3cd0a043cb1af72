"""Results that are read out of the journal by two at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from actors.history import results


class Reading:
    """Takes a moment for each, as a generator that is resumed."""

    def __init__(self, journal: Any, load: Any, index: int) -> None:
        self.index = index
        self._some = self._read()

    def _read(self) -> Iterator[list[tuple[int, Any]]]:
        while True:
            time.sleep(0.05)
            yield [(self.index, "result")]

    def read(self) -> list[tuple[int, Any]]:
        return next(self._some)

    def close(self) -> None:
        self._some.close()  # type: ignore[attr-defined]


def test_two_that_ask_at_once_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "ResultProjection", Reading)

    class Loads:
        load_program = None

    past, together = results.PastResults(lambda: None, Loads()), threading.Barrier(2)  # type: ignore[arg-type, return-value]

    def ask(_: int) -> list[tuple[int, Any]]:
        together.wait(60)
        return past.read(7)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, range(2))) == [[(7, "result")]] * 2
    past.close()
