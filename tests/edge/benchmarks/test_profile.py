"""What py-spy saw, read: whose part a look is, and what is left out; and bytecodes, counted."""

from __future__ import annotations

import subprocess
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.harness import counting, profile_parts
from benchmarks.profile import bytecodes, profiler
from policies.estimates.tokens import tokens_bound

ROOT = profile_parts.ROOT
LOOP = f"<module> ({ROOT}/benchmarks/harness/instant_model.py:51);enter ({ROOT}/actors/cli/main.py:34);Runner.run (/usr/lib/python3.11/asyncio/runners.py:118)"
SITE = "/venv/lib/python3.11/site-packages"


def test_a_look_is_of_the_deepest_function_of_ours() -> None:
    raw = "\n".join(
        [
            f"{LOOP};Branch._hand ({ROOT}/actors/branch/branch.py:250);call ({ROOT}/actors/providers/messages/client.py:9);post ({SITE}/aiohttp/client.py:7) 60",
            f"{LOOP};step ({ROOT}/cortex/loop/step.py:44);ask ({ROOT}/cortex/calls/request.py:3) 20",
            f"{LOOP};Null.select ({ROOT}/benchmarks/null/null_program.py:3) 10",
            f"{LOOP} 10",
            f"Thread.run (/usr/lib/python3.11/threading.py:3);Outbox._run ({ROOT}/actors/observing/outbox.py:3);Condition.wait (/usr/lib/python3.11/threading.py:9) 500",
            f"<module> ({ROOT}/actors/cli/app.py:1);_find_and_load (<frozen importlib._bootstrap>:3);<module> ({ROOT}/actors/providers/messages/client.py:3) 500",
        ]
    )
    found = profiler.read(raw, 50.0)
    assert (found.looks, found.parts) == (100, {"client": 30.0, "select": 10.0, "benchmark": 5.0, "event loop": 5.0})
    assert found.top["actors/providers/messages/client.py: call"] == 30.0 and found.top["event loop: Runner.run"] == 5.0
    assert "client" in profiler.table("driver", found)


def test_every_file_of_ours_has_a_part() -> None:
    for package in profile_parts.OWN:
        for path in (ROOT / package).rglob("*.py"):
            assert profile_parts.part(str(path)) in profile_parts._PARTS
    assert profile_parts.part(f"{SITE}/aiohttp/client.py") == "aiohttp"
    assert profile_parts.part(f"{ROOT}/.venv/lib/python3.11/site-packages/aiohttp/client.py") == "aiohttp"
    assert profile_parts.part(f"{ROOT}/cortex/calls/voting.py") == "absorb"


def test_every_beginning_of_a_part_is_of_files_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    assert profile_parts.unused() == []
    monkeypatch.setitem(profile_parts._PARTS, "rows", "cortex/loop/event_handlers cortex/gone/")
    assert profile_parts.unused() == ["cortex/gone/"]


def test_what_is_too_narrow_is_left_out_of_a_flame_graph(tmp_path: Path) -> None:
    box = '<g><title>f (a.py) (3 samples, {}%)</title><rect x="1"/><text>f</text></g>'
    title = '<text id="title" x="1">{}</text>'
    (tmp_path / "a.svg").write_text(
        f"<svg>{title.format('py-spy record --output a.svg')}{box.format('5.12')}{box.format('0.05')}</svg>"
    )
    profiler.trimmed(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text() == f"<svg>{title.format('a')}{box.format('5.12')}</svg>"


def test_where_it_may_not_look_one_line_says_so() -> None:
    refused = subprocess.CompletedProcess(
        [], 1, "", "Error: Failed to open process\nReason: Permission denied (os error 13)\n"
    )
    with pytest.raises(profiler.Refused, match="py-spy may not look") as caught:
        profiler.see_ended(refused)
    assert "\n" not in str(caught.value)
    with pytest.raises(RuntimeError, match="it ended with 3: broken"):
        profiler.see_ended(subprocess.CompletedProcess([], 3, "", "broken"))


def test_bytecodes_of_ours_are_counted_one_by_one_and_those_of_others_are_not() -> None:
    def counted(times: int) -> Counter[bytecodes.Place]:
        found: Counter[bytecodes.Place] = Counter()
        with bytecodes.traced(found, counting.Work(times)):
            for _ in range(times):
                tokens_bound("six words that nobody has counted")
                textwrap.dedent("  others")
        return found

    counted(1)  # from 3.12 on the first call of a function is the one from which on its bytecodes are told
    once, thrice = counted(1), counted(3)
    assert {file for file, _, _ in once} == {"policies/estimates/tokens.py"}
    assert thrice == Counter({place: 3 * count for place, count in once.items()})
    assert once.total() > 3


def test_lines_that_spend_most_are_told_with_their_text() -> None:
    place = "policies/estimates/tokens.py", "tokens_bound", 1
    lines = list(bytecodes.table({place: 5.0, (*place[:2], 2): 2.0, ("actors/a.py", "f", 1): 6.0}, lines=2))
    assert lines[0].split()[0] == "13.0" and lines[1].split()[:2] == ["7.0", "policies/estimates/tokens.py:"]
    first = (ROOT / "policies/estimates/tokens.py").read_text().splitlines()[0]
    assert lines[2].split(maxsplit=2) == ["5.0", "1", first]
