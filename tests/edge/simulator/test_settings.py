"""Settings of the simulated provider: validated at birth, each fault told in one line that names the setting."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors.simulator.faults import FAULTS, drawn
from actors.simulator.settings import (
    _FORMS,
    SettingsError,
    SimulatorSettings,
    allowed,
    changed,
    queue_from,
    settings_from,
)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"seed": -1}, "seed: expected a whole number of at least 0, got -1"),
        ({"seed": True}, "seed: expected a whole number of at least 0, got True"),
        ({"latency_ms": "20"}, "latency_ms: expected a number of at least 0, got '20'"),
        ({"latency_ms": float("nan")}, "latency_ms: expected a number of at least 0, got nan"),
        ({"error": 1.5}, "error: expected a number from 0 to 1, or none, got 1.5"),
        ({"rpm": 0}, "rpm: expected a whole number of at least 1, or none, got 0"),
        ({"burst_s": 0}, "burst_s: expected a number above 0, got 0"),
        ({"limits_told": "all"}, "limits_told: expected headers, retry-after, nothing, got 'all'"),
        ({"context_window": 0}, "context_window: expected a whole number of at least 1, got 0"),
        ({"credit_calls": -1}, "credit_calls: expected a whole number of at least 0, or none, got -1"),
        ({"faults": {"overlaoded": 0.1}}, "faults: unknown fault 'overlaoded'; did you mean 'overloaded'?"),
        ({"faults": {"hang": 2}}, "faults: hang: expected a number from 0 to 1, got 2"),
        ({"faults": {"hang": 0.7, "reset": 0.6}}, "faults: the shares add up to 1.3, more than 1"),
        ({"faults": ["hang"]}, "faults: expected names with shares, got ['hang']"),
        ({"models": ("",)}, "models: names must be non-empty text"),
        ({"kv_tokens": 9_000}, "kv_tokens: needs a server that queues: give slots too"),
        ({"slots": 4, "prefill_tps": 0}, "prefill_tps: expected a number above 0, or none, got 0"),
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
        # no value: the form, or all names
        (["seed"], [], "expected seed=VALUE, a whole number of at least 0, got 'seed'"),
        (["rpm="], [], "expected rpm=VALUE, a whole number of at least 1, or none, got 'rpm='"),
        (["models="], [], "expected models=VALUE, got 'models='"),
        (["hang"], [], "expected hang=SHARE, a number from 0 to 1, got 'hang'"),
        (["fault.hang"], [], "expected hang=SHARE, a number from 0 to 1, got 'fault.hang'"),
        ([], ["overloaded"], "expected overloaded=SHARE, a number from 0 to 1, got 'overloaded'"),
        *[([text], [], f"expected NAME=VALUE ({allowed()}), got {text!r}") for text in ("faults", "faults=0.1", "faults=", "storm", "=3", "=", "")],
        *[([], [text], f"expected a fault as NAME=SHARE ({allowed()}), got {text!r}") for text in ("storm", "=3", "")],
        # an unknown name
        (["latncy_ms=3"], [], "unknown setting 'latncy_ms'; did you mean 'latency_ms'?"),
        (["ovrloaded=1"], [], "unknown setting 'ovrloaded'; did you mean 'overloaded'?"),
        (["storm=1"], [], f"unknown setting 'storm'; {allowed()}"),
        (["fault.seed=1"], [], f"faults: unknown fault 'seed'; {allowed()}"),
        # a value of another form
        (["rpm=many"], [], "rpm: expected a whole number of at least 1, or none, got 'many'"),
        (["rpm=0"], [], "rpm: expected a whole number of at least 1, or none, got 0"),
        (["rpm=1.5"], [], "rpm: expected a whole number of at least 1, or none, got 1.5"),
        (["rpm=nan"], [], "rpm: expected a whole number of at least 1, or none, got nan"),
        (["seed=none"], [], "seed: expected a whole number of at least 0, got None"),
        (["latency_ms=inf"], [], "latency_ms: expected a number of at least 0, got inf"),
        (["latency_ms=soon"], [], "latency_ms: expected a number of at least 0, got 'soon'"),
        (["error=true"], [], "error: expected a number from 0 to 1, or none, got 'true'"),
        (["hang=nan"], [], "faults: hang: expected a number from 0 to 1, got nan"),
        (["hang=2"], [], "faults: hang: expected a number from 0 to 1, got 2"),
        (["hang=none"], [], "faults: hang: expected a number from 0 to 1, got None"),
        (["hang=0.7", "reset=0.6"], [], "faults: the shares add up to 1.3, more than 1"),
        ([], ["overloaded=half"], "faults: overloaded: expected a number from 0 to 1, got 'half'"),
        ([], ["boom=0.1"], f"faults: unknown fault 'boom'; {allowed()}"),
    ],
)
def test_a_bad_text_is_named_in_one_line(pairs: list[str], faults: list[str], told: str) -> None:
    with pytest.raises(SettingsError) as error:
        settings_from(pairs, faults)
    assert str(error.value) == told


def test_a_queue_is_given_in_one_text() -> None:
    assert queue_from("") == []
    settings = settings_from(queue_from("slots=256, kv_tokens=400_000,prefill-tps=2e4,step_tokens=2048,"))
    assert (settings.slots, settings.kv_tokens, settings.prefill_tps, settings.step_tokens) == (256, 400_000, 2e4, 2_048)
    with pytest.raises(SettingsError, match=r"^expected slots, kv_tokens, .* as NAME=VALUE, .* got 'rpm=3'$"):
        queue_from("slots=8,rpm=3")
    with pytest.raises(SettingsError, match=r"^kv_tokens: needs a server that queues: give slots too$"):
        settings_from(queue_from("kv_tokens=9000"))


def test_each_number_among_the_settings_has_a_form() -> None:
    kinds = {field.name: str(field.type) for field in msgspec.structs.fields(SimulatorSettings)}
    assert {name for name, kind in kinds.items() if kind.startswith(("int", "float", "<class"))} - {"limits_told"} == _FORMS.keys()


def test_all_names_are_named_and_the_last_value_of_one_counts() -> None:
    names = {*SimulatorSettings.__struct_fields__, *FAULTS} - {"faults"}
    assert all(f" {name}," in f"{allowed().replace(';', ',')}," for name in names)
    settings = settings_from(["rpm=1", "hang=0.1", "rpm=2", "fault.hang=0.2"])
    assert (settings.rpm, settings.faults) == (2, {"hang": 0.2})


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
