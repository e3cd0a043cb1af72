"""Scrapes that are repeated for the alert rules, and that a rule which is wrong is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.e2e.drills.recorded import PER_SCRAPE, RULES, STEP_S, Scrape, Still, evaluated, stored

BEGAN_S = 1.8e9
STALLED = "cortex_job:stalled_seconds"
PROGRESSED, QUEUE, CALLS = "cortex_job_progressed_seconds", "cortex_queue", "cortex_calls_total"


def _scrape(slot: int, progressed: int, calls: float, queue: float = 5) -> Scrape:
    """A scrape of a job whose last call ended in the step ``progressed``."""
    of = '{cortex_job_id="mine"}'
    values = {PROGRESSED: BEGAN_S + progressed * STEP_S, QUEUE: queue, CALLS: calls, "cortex_calls_in_flight": 8}
    return Scrape(slot, {name + of: value for name, value in values.items()})


SCRAPES = [
    *(_scrape(slot, slot, slot * 10, slot % 2) for slot in range(4)),
    *(_scrape(slot, 3, 30) for slot in range(4, 8)),
    *(_scrape(slot, slot, 30 + (slot - 7) * 10) for slot in range(8, 12)),
    Scrape(12, {}),
]
STILLS = [Still(-1, 3, 4), Still(3, 7, 66), Still(7, 11, 2)]
"""Work for a minute, a stand of 16.5 minutes, and work again; then the job is gone."""


def test_counters_grow_on_moments_stay_or_go_along_and_gauges_come_again() -> None:
    told = {key.partition("{")[0]: values for key, values in stored(SCRAPES, STILLS, BEGAN_S).items()}
    again = 3 + 4 * PER_SCRAPE
    assert told[CALLS][again] == 30 + 60 / STEP_S * 10
    assert [told[QUEUE][3 + number * PER_SCRAPE] for number in (1, 2, 3, 4)] == [0, 1, 0, 1]
    assert told[PROGRESSED][again] == again * STEP_S, "it went along"
    stood = again + 4 + 66 * PER_SCRAPE
    assert told[PROGRESSED][again + 1] == told[PROGRESSED][stood] == again * STEP_S, "it stays"
    assert told[CALLS][stood] == told[CALLS][again]
    assert told[CALLS][stood + 1] == told[CALLS][again] + 10
    assert told[PROGRESSED][stood + 1] == (stood + 1) * STEP_S
    gone = stood + 5 + 2 * PER_SCRAPE
    assert (told[CALLS][gone], told[QUEUE][gone]) == (None, None)


@pytest.mark.parametrize(
    ("alert", "was", "wrong", "found"),
    [
        ("CortexNoProgress", STALLED, STALLED, ""),
        ("CortexNoProgress", STALLED, f"{STALLED} > 6000", "got: nil"),
        ("CortexNoProgress", STALLED, "cortex_job:calls_waiting > 0", 'got: {alertname="CortexNoProgress"}'),
        ("CortexBudgetNearlySpent", "(cortex_job:cost_usd", "cortex_job:calls_waiting or (cortex_job:cost_usd", "NearlySpent"),
    ],
    ids=["right", "never fires", "fires too early", "another fires"],
)  # fmt: skip
def test_a_rule_that_is_wrong_is_found(
    promtool: str, tmp_path: Path, alert: str, was: str, wrong: str, found: str
) -> None:
    rules = yaml.safe_load(RULES.read_text())
    (rule,) = (each for each in rules["groups"][0]["rules"] if each.get("alert") == alert)
    assert was in rule["expr"]
    rule["expr"] = rule["expr"].replace(was, wrong)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    worked, stood, over = 3 + 4 * PER_SCRAPE, 7 + 70 * PER_SCRAPE, 11 + 72 * PER_SCRAPE
    fires = {worked: "", worked + 36 * PER_SCRAPE: "", stood: "CortexNoProgress", over: ""}
    moments = [(slot, frozenset(filter(None, [name]))) for slot, name in fires.items()]
    told = evaluated(promtool, tmp_path, stored(SCRAPES, STILLS, BEGAN_S), moments, tmp_path / "rules.yaml")
    assert found in told if found else not told, told
