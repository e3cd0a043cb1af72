"""Settings of the simulated provider: validated at birth, each fault told in one line that names the setting."""

from __future__ import annotations

from typing import Any

import pytest

from actors.simulator.faults import FAULTS, drawn
from actors.simulator.settings import SettingsError, SimulatorSettings, changed, settings_from


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"seed": -1}, "seed: expected a whole number of at least 0, got -1"),
        ({"seed": True}, "seed: expected a whole number of at least 0, got True"),
        ({"latency_ms": "20"}, "latency_ms: expected a number of at least 0, got '20'"),
        ({"latency_ms": float("nan")}, "latency_ms: expected a number of at least 0, got nan"),
        ({"error": 1.5}, "error: expected a number from 0 to 1, got 1.5"),
        ({"rpm": 0}, "rpm: expected a whole number of at least 1, got 0"),
        ({"burst_s": 0}, "burst_s: expected a number above 0, got 0"),
        ({"limits_told": "all"}, "limits_told: expected headers, retry-after, nothing, got 'all'"),
        ({"context_window": 0}, "context_window: expected a whole number of at least 1, got 0"),
        ({"credit_calls": -1}, "credit_calls: expected a whole number of at least 0, got -1"),
        ({"faults": {"overlaoded": 0.1}}, "faults: unknown fault 'overlaoded'; did you mean 'overloaded'?"),
        ({"faults": {"hang": 2}}, "faults: hang: expected a number from 0 to 1, got 2"),
        ({"faults": {"hang": 0.7, "reset": 0.6}}, "faults: the shares add up to 1.3, more than 1"),
        ({"faults": ["hang"]}, "faults: expected names with shares, got ['hang']"),
        ({"models": ("",)}, "models: names must be non-empty text"),
    ],
)
def test_a_bad_setting_is_named_in_one_line(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError) as error:
        SimulatorSettings(**given)
    assert str(error.value) == told


def test_from_texts() -> None:
    settings = settings_from(
        ["seed=3", "latency-ms=20.5", "rpm=1_000", "error=none", "models=a, b", "fault.hang=0.01"], ["overloaded=0.02"]
    )
    assert (settings.seed, settings.latency_ms, settings.rpm, settings.error) == (3, 20.5, 1000, None)
    assert settings.models == ("a", "b")
    assert settings.faults == {"hang": 0.01, "overloaded": 0.02}


@pytest.mark.parametrize(
    ("pairs", "faults", "told"),
    [
        (["seed"], [], "expected name=value, got 'seed'"),
        (["=3"], [], "expected name=value, got '=3'"),
        (["latncy_ms=3"], [], "unknown setting 'latncy_ms'; did you mean 'latency_ms'?"),
        (["rpm=many"], [], "rpm: expected `int | null`, got `str`"),
        (["rpm=0"], [], "rpm: expected a whole number of at least 1, got 0"),
        ([], ["overloaded"], "expected name=value, got 'overloaded'"),
        ([], ["overloaded=half"], "faults: overloaded: expected a number from 0 to 1, got 'half'"),
        ([], ["boom=0.1"], "faults: unknown fault 'boom'; known: " + ", ".join(FAULTS)),
    ],
)
def test_a_bad_text_is_named_in_one_line(pairs: list[str], faults: list[str], told: str) -> None:
    with pytest.raises(SettingsError) as error:
        settings_from(pairs, faults)
    assert str(error.value) == told


def test_a_change_is_checked_whole() -> None:
    settings = SimulatorSettings(seed=1, faults={"hang": 0.5})
    assert changed(settings, {"rpm": 5}).faults == {"hang": 0.5}
    with pytest.raises(SettingsError, match="faults"):
        changed(settings, {"faults": {"hang": 0.5, "reset": 0.6}})


def test_faults_are_copied() -> None:
    shares = {"reset": 0.1, "hang": 0.2}
    settings = SimulatorSettings(faults=shares)
    shares["hang"] = 0.9
    assert settings.faults == {"hang": 0.2, "reset": 0.1}
    assert list(settings.faults) == ["hang", "reset"]


def test_the_answers_hash_names_what_decides_an_answers_text() -> None:
    plain = SimulatorSettings()
    assert plain.answers_hash() == SimulatorSettings(rpm=3, faults={"hang": 0.1}, credit_calls=2).answers_hash()
    others = {SimulatorSettings(seed=1).answers_hash(), SimulatorSettings(error=0.0).answers_hash()}
    assert len(others | {plain.answers_hash()}) == 3


def test_keys_are_not_told() -> None:
    assert "sk-secret" not in str(SimulatorSettings(keys=("sk-secret",)).public())


def test_shares_lie_side_by_side() -> None:
    shares = {"throttled": 0.25, "overloaded": 0.5}
    found = [drawn(shares, at) for at in (0.0, 0.24, 0.26, 0.74, 0.76, 0.999)]
    assert [each.name if each else None for each in found] == [
        "throttled",
        "throttled",
        "overloaded",
        "overloaded",
        None,
        None,
    ]
