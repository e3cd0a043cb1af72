"""A command that ends leaves its memory as it is; what is registered for the end comes all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import atexit
from actors.common.gc_tuning import never_at_the_end

class Ring:
    def __init__(self):
        self.own = self
    def __del__(self):
        print("a ring was found")

{first}
atexit.register(print, "registered later")
ring = Ring()
"""


@pytest.mark.parametrize(
    ("first", "said"), [("never_at_the_end()", "registered later\n"), ("", "registered later\na ring was found\n")]
)
def test_no_garbage_is_looked_for_as_a_command_ends(first: str, said: str) -> None:
    argv = [sys.executable, "-c", SCRIPT.format(first=first)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == said


@pytest.mark.parametrize(("first", "frozen"), [("seldom()", True), ("", False)])
def test_objects_are_exempted_only_in_a_process_of_our_own(first: str, frozen: bool) -> None:
    script = f"import gc\nfrom actors.common.gc_tuning import seldom, settle_where_owned\n{first}\nsettle_where_owned()\n"
    argv = [sys.executable, "-c", f"{script}print(gc.get_freeze_count() > 0)"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == f"{frozen}\n"
