"""Whether a round got anywhere: by the folder and by what a check counted or said, a case a line."""

from __future__ import annotations

import pytest

from policies.decisions.progress import REMEMBERED, ProgressSoFar, RoundFacts, and_now, failing, fingerprint, progressed

COUNTED = ProgressSoFar(best=5, folders=("a", "b"), said=("5 missing", "7 missing"))
SPOKEN = ProgressSoFar(best=None, folders=("a", "b"), said=("no module x",))

CASES = [
    # reached, the folder now, what was said, what was counted -> progress?
    (COUNTED, "c", "4 missing", 4, True),
    (COUNTED, "c", "5 missing", 5, False),  # a diary in the folder counts for nothing
    (COUNTED, "c", "6 missing", 6, False),
    (COUNTED, "b", "4 missing", 4, False),  # that folder was there before: round in circles
    (COUNTED, "c", "something new", None, False),  # a check that was broken says new things too
    (COUNTED, "c", "", None, False),
    (SPOKEN, "c", "no module y", None, True),
    (SPOKEN, "c", "no module x", None, False),
    (SPOKEN, "b", "no module y", None, False),
    (SPOKEN, "c", "9 missing", 9, True),  # it has come so far as to count
    (SPOKEN, "c", "", None, True),  # silent, and the folder is new
    (SPOKEN, "a", "", None, False),
    (ProgressSoFar(), "a", "3 missing", 3, True),
    (ProgressSoFar(), "a", "", None, True),
]


@pytest.mark.parametrize(("reached", "folder", "said", "count", "progress"), CASES)
def test_progress_is_read_from_folder_and_check(reached, folder, said, count, progress):
    assert progressed(reached, RoundFacts(folder, said, count)) is progress


def test_what_was_reached_is_remembered_and_the_least_left_is_the_best():
    reached = and_now(
        and_now(and_now(ProgressSoFar(), RoundFacts("a", "x", 7)), RoundFacts("b", "", 9)), RoundFacts("c", "y", None)
    )
    assert reached == ProgressSoFar(7, ("a", "b", "c"), ("x", "y"))
    for place in range(REMEMBERED + 5):
        reached = and_now(reached, RoundFacts(f"f{place}", f"s{place}", None))
    assert (len(reached.folders), len(reached.said)) == (REMEMBERED, REMEMBERED)


@pytest.mark.parametrize(
    ("output", "count"),
    [
        ("", None),
        ("all is well", None),
        ("a.txt is missing", None),
        ("12 missing", 12),
        ("= 2 failed, 5 passed in 0.31s =", 2),
        ("== 2 failed, 1 error in 3.10s ==", 3),
        ("FAILED (failures=2, errors=1)", 3),
        ("Found 4 errors in 2 files (checked 9 source files)", 4),
        ("9 missing\nlater\n3 missing\nbye", 3),  # the last line that counts
        ("remaining: 6", 6),
        ("0 problems", 0),
        ("5 passed", None),
    ],
)
def test_what_is_left_is_read_from_the_last_line_that_counts_it(output, count):
    assert failing(output) == count


def test_times_and_addresses_make_no_difference_and_everything_else_does():
    one = fingerprint(1, "2 failed in 0.31s at 0x7f21, 11:02:03")
    assert one == fingerprint(1, "2 failed in 10.9s at 0xdead, 23:59:59")
    assert one != fingerprint(2, "2 failed in 0.31s at 0x7f21, 11:02:03")
    assert one != fingerprint(1, "3 failed in 0.31s at 0x7f21, 11:02:03")
    assert fingerprint(1, " \n") == ""
