"""What a call takes after many others is counted, and told beside what it took after few."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import growth
from benchmarks.scale import grows
from cortex.calls import answers
from cortex.state.state import State


@pytest.mark.parametrize("kind", ["batch", pytest.param("kept", marks=pytest.mark.long)])
def test_a_call_takes_as_much_after_many_others_as_after_few(kind: str) -> None:
    found = growth.measured(kind, [2_000, 20_000], 16_000)  # few windows of rows are cut
    assert set(found["after"]) == {"2000", "20000"}
    assert found["spread"] < 1.1
    assert all(figures["functions of ours"] > 10 * growth.PER for figures in found["after"].values())


def test_what_grows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    folded = answers.fast_fold

    def slower(k: State, *answer: Any) -> None:
        for _ in range(k.successes // 1_000):
            k.call_id(1, "0")
        folded(k, *answer)

    monkeypatch.setattr(answers, "fast_fold", slower)
    assert growth.measured("batch", [2_000, 20_000], 16_000)["spread"] > 1.15


def test_runs_are_compared_with_those_beside_them() -> None:
    slow = {10: [70.0, 90.0], 100: [80.0], 1_000: [88.0]}  # the machine became half as fast
    quick = {10: [40.0], 100: [40.0, 44.0], 1_000: [44.0]}
    assert grows([quick]) == {"10": 1.0, "100": 1.05, "1000": 1.1}
    assert grows([quick, slow, slow]) == {"10": 1.0, "100": 1.0, "1000": 1.1}
