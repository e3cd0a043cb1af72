"""The trace of a job: the documented form, complete, and slices that no viewer has to guess about.

The form: "Trace Event Format", the sections on complete, counter, instant and metadata events.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from actors.history.annotated_turns import readings
from actors.jobs.summary import summary
from actors.report.perfetto import trace
from tests.edge.report.test_aggregate import story_of_all_kinds
from tests.edge.report.test_page import hostile

WANTED = {
    "X": {"ts", "dur", "cat", "args"}, "C": {"ts", "args"}, "i": {"ts", "s", "cat"}, "M": {"args"},
}  # fmt: skip
METADATA = {
    "process_name": "name",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


def read(folder: Any, text: bool = True) -> dict[str, Any]:
    """The trace as a viewer reads it."""
    return json.loads(b"".join(trace(readings(folder, "job"), text)))


def test_each_event_has_the_documented_form(tmp_path: Path) -> None:
    facts = read(story_of_all_kinds(tmp_path).folder)
    assert set(facts) == {"displayTimeUnit", "traceEvents", "otherData"} and facts["displayTimeUnit"] in ("ms", "ns")
    for event in facts["traceEvents"]:
        assert WANTED[event["ph"]] | {"ph", "pid", "tid", "name"} <= set(event)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["name"], str)
        for name in ("ts", "dur"):
            assert isinstance(event.get(name, 0), int) and event.get(name, 0) >= 0
        assert event.get("s", "p") in ("g", "p", "t")
        if event["ph"] == "M":
            assert set(event["args"]) == {METADATA[event["name"]]}
        if event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())


def test_every_attempt_is_there_and_none_overlaps_another_in_its_thread(tmp_path: Path) -> None:
    book = story_of_all_kinds(tmp_path)
    reported = read(book.folder)["traceEvents"]
    slices = [event for event in reported if event["ph"] == "X" and event["cat"] != "breaker"]
    facts = summary(book.k)
    failed = [event for event in slices if event["cat"] == "failed"]
    assert len(failed) == sum(facts["failures"].values())
    late_and_double = 1
    assert len(slices) - len(failed) == facts["paid_calls"] + late_and_double
    named = {
        (event["pid"], event["tid"]) for event in reported if event["ph"] == "M" and event["name"] == "thread_name"
    }
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in slices:
        assert (event["pid"], event["tid"]) in named
        threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))
    opened = [event for event in reported if event["ph"] == "X" and event["cat"] == "breaker"]
    assert [(event["name"], event["dur"]) for event in opened] == [("open", 32_900_000), ("half open", 1_000_000)]


def test_text_is_left_out_where_it_is_to_be(tmp_path: Path) -> None:
    book = hostile(tmp_path)
    whole, without = (b"".join(trace(readings(book.folder, "job"), text)).decode() for text in (True, False))
    assert '"message"' in whole and "drain by" in whole
    assert '"message"' not in without and "drain by" not in without
    args = [event["args"] for event in json.loads(without)["traceEvents"] if event["ph"] == "X"]
    assert args and not any("name" in each for each in args)
