"""How often a channel is asked for room, and how much is read for it then."""

from __future__ import annotations

import pytest

from actors.appetite import PAUSE_MAX_S, PAUSE_S, Appetite

WINDOW = 2_048
ENOUGH = WINDOW // 4
MESSAGE_S = 0.003


def run(rows_per_s: float, for_s: float = 5.0) -> tuple[float, float]:
    """A driver and a channel of which so many rows a second could be done: windows a second, and the share of the time
    for which nothing was there to do."""
    appetite, at_s, open_rows, starved_s, windows = Appetite(WINDOW), 0.0, float(WINDOW), 0.0, 0
    appetite.fed(0.0, 0)
    wanted = 0

    def passes(time_s: float) -> None:
        nonlocal at_s, open_rows, starved_s
        at_s += time_s
        done = min(open_rows, rows_per_s * time_s)
        starved_s += time_s - done / rows_per_s
        open_rows -= done

    while at_s < for_s:
        if wanted < ENOUGH:
            passes(appetite.pause_s(wanted))
            passes(MESSAGE_S)
            wanted = int(WINDOW - open_rows)
            appetite.looked(at_s, wanted)
        if wanted > 0:
            open_rows += wanted
            windows += 1
            passes(MESSAGE_S)
            wanted = int(WINDOW - open_rows)
            appetite.fed(at_s, wanted)
    return windows / at_s, starved_s / at_s


@pytest.mark.parametrize(("rows_per_s", "windows_per_s"), [(50, 7), (500, 7), (5_000, 7), (20_000, 25), (60_000, 70)])
def test_windows_are_as_large_as_they_may_be_and_no_place_is_empty(rows_per_s: int, windows_per_s: int) -> None:
    windows, starved = run(rows_per_s)
    assert windows <= windows_per_s
    assert starved < 0.01


def test_where_nothing_leaves_it_is_asked_more_and_more_rarely() -> None:
    appetite, pauses = Appetite(WINDOW), []
    appetite.fed(0.0, 0)
    for look in range(4):
        pauses.append(appetite.pause_s(0))
        appetite.looked(float(look + 1), 0)
    assert pauses == [PAUSE_S, 2 * PAUSE_S, PAUSE_MAX_S, PAUSE_MAX_S]
