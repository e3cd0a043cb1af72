"""Number of unreadable records with which a job begins, as it is given in Python and in words."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from actors.jobs.unreadable_input import ACCEPTED, accepted_of


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        (None, ACCEPTED), ("", ACCEPTED), (" ", ACCEPTED),
        # a share: a float, or a text with a point or a percent sign; the whole share is any number
        (0.0, Fraction(0)), (0.05, Fraction(5, 100)), (0.29, Fraction(29, 100)), (1.0, None), (np.float64(1.0), None),
        (np.float32(0.05), Fraction(5, 100)), (Decimal("0.05"), Fraction(5, 100)), (Decimal("1"), None),
        ("0.05", Fraction(5, 100)), ("5%", Fraction(5, 100)), (" 5 % ", Fraction(5, 100)), ("1%", Fraction(1, 100)),
        ("0.0", Fraction(0)), ("0%", Fraction(0)), ("1.0", None), ("100%", None), ("100.0%", None),
        # a count: an int, or a text of digits alone
        (0, Fraction(0)), (1, Fraction(1)), (200, Fraction(200)), (np.int64(3), Fraction(3)),
        ("0", Fraction(0)), ("1", Fraction(1)), ("200", Fraction(200)), ("+3", Fraction(3)),
    ],
)  # fmt: skip
def test_a_float_is_a_share_and_an_int_a_count(value: Any, accepted: Fraction | None) -> None:
    assert accepted_of(value) == accepted


@pytest.mark.parametrize(
    "value",
    [
        -1, -0.5, 1.0000001, 1.5, 5.0, 200.0, float("nan"), float("inf"), -float("inf"), True, False, np.True_, 1 + 0j, [1], b"5%", 1e-300,
        Decimal("NaN"), Decimal("2"), Decimal("1e999999999"), "-1", "1.5", "200.0", "101%", "nan", "inf", "much", "1/3", "5%%", "1e999999999",
    ],
)  # fmt: skip
def test_another_value_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match=r"give a share, like 5% or 0\.05") as error:
        accepted_of(value)
    assert str(error.value).startswith(f"{value!r}: ")
    assert ("a float is a share from 0.0 to 1.0, an int a count" in str(error.value)) != isinstance(value, str)
