"""How long an attempt may take and be silent."""

import pytest

from policies.failures.timeout import TimeoutPolicy, attempt_timeout_s, silence_max_s

POLICY = TimeoutPolicy(
    connect_s=10,
    first_byte_s=60,
    between_bytes_s=45,
    per_input_token_s=0.001,
    per_output_token_s=0.05,
    floor_s=80,
    ceiling_s=600,
)


@pytest.mark.parametrize(
    ("output_tokens_max", "input_tokens_bound", "expected_s"),
    [
        (0, 0, 80.0),  # the floor
        (100, 5_000, 80.0),
        (200, 5_000, 85.0),  # 10 + 60 + 5 + 10
        (1_000, 10_000, 130.0),
        (10_600, 0, 600.0),
        (64_000, 100_000, 600.0),  # the ceiling
    ],
)
def test_attempt_timeout(output_tokens_max: int, input_tokens_bound: int, expected_s: float) -> None:
    assert attempt_timeout_s(POLICY, output_tokens_max, input_tokens_bound) == pytest.approx(expected_s)


def test_silence() -> None:
    assert silence_max_s(POLICY, 10_000, answer_begun=False) == 70.0
    assert silence_max_s(POLICY, 10_000, answer_begun=True) == 45.0


def test_by_default_a_long_answer_has_time_to_be_written() -> None:
    # 64,000 tokens at 30 a second
    assert attempt_timeout_s(TimeoutPolicy(), 64_000, 10_000) > 64_000 / 30


@pytest.mark.parametrize(
    "settings",
    [
        {"connect_s": 0.0},
        {"first_byte_s": -1.0},
        {"between_bytes_s": float("inf")},
        {"per_output_token_s": float("nan")},
        {"floor_s": 0.0},
        {"ceiling_s": 0.0},
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        TimeoutPolicy(**settings)


def test_a_floor_above_the_ceiling_is_refused() -> None:
    with pytest.raises(ValueError, match=r"floor_s .* above ceiling_s"):
        TimeoutPolicy(floor_s=10, ceiling_s=5)
