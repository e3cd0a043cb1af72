"""How long an attempt may take and be silent."""

import pytest

from policies.failures.timeout import (
    PATIENCE_ANSWERS,
    TimeoutPolicy,
    attempt_timeout_s,
    learned_patience,
    silence_max_s,
    teaches_from_s,
)

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


@pytest.mark.parametrize(
    ("patience", "waits", "expected_s"),
    [
        (1.0, 0, 130.0),
        (0.5, 0, 130.0),  # never shorter
        (2.0, 0, 260.0),
        (1.0, 1, 260.0),
        (1.0, 2, 520.0),
        (1.0, 9, 520.0),  # two doublings at most
        (2.0, 1, 520.0),
        (2.0, 2, 600.0),  # the ceiling
    ],
)
def test_a_timeout_of_a_server_that_queues(patience: float, waits: int, expected_s: float) -> None:
    assert attempt_timeout_s(POLICY, 1_000, 10_000, patience, waits) == pytest.approx(expected_s)
    by_hand = TimeoutPolicy(floor_s=25.0, ceiling_s=25.0)
    assert attempt_timeout_s(by_hand, 1_000, 10_000, patience, waits) == 25.0, "a fixed timeout stays"


@pytest.mark.parametrize(
    ("patience", "elapsed_s", "expected"),
    [
        (1.0, 5.0, 1.0),
        (1.0, 130.0 / 3, 1.0),
        (1.0, 65.0, 1.5),  # three times what was needed
        (4.0, 260.0, 6.0),  # rises at once
        (4.0, 65.0, 4.0 - 2.5 / PATIENCE_ANSWERS),  # falls slowly
        (1.001, 0.0, 1.0),
    ],
)
def test_patience_follows_the_longest_durations(patience: float, elapsed_s: float, expected: float) -> None:
    assert learned_patience(POLICY, patience, elapsed_s, 1_000, 10_000) == pytest.approx(expected)


def test_patience_compares_long_and_short_requests_by_their_own_timeouts() -> None:
    short, long = (learned_patience(POLICY, 1.0, 80.0, tokens, 0) for tokens in (100, 6_000))
    assert (short, long) == (3.0, 1.0)


def test_quick_answers_bring_the_usual_timeout_back() -> None:
    patience, answers = 3.0, 0
    while patience > 1.0:
        patience, answers = learned_patience(POLICY, patience, 1.0, 0, 0), answers + 1
    assert (patience, answers // 100) == (1.0, 2)


def test_an_answer_below_the_bound_changes_no_patience() -> None:
    assert teaches_from_s(POLICY, 1.0) == pytest.approx(80 / 3)
    assert learned_patience(POLICY, 1.0, teaches_from_s(POLICY, 1.0), 0, 0) == 1.0
    assert teaches_from_s(POLICY, 1.5) < 0, "each answer lets it fall"


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
