"""Unreadable records of an input: their count among a job's places, and the number with which a job may begin."""

from __future__ import annotations

import contextlib
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Integral, Real
from typing import Final

from actors.common.errors import UserError
from actors.files.sources.row_source import InputCheck
from actors.jobs.spec import JobSpec
from actors.jobs.summary import UNREADABLE
from policies.failures.failure_budget import too_many_unreadable

ACCEPTED: Final = Fraction(1, 100)
"""Share of unreadable records with which a job begins unless the user says otherwise. A few broken lines are a matter
of the lines; more are one of the file: its encoding, its delimiter, or a program that wrote it."""

LEAST, MOST = Decimal("1e-18"), Decimal("1e18")
"""Bounds of a share or count that is given: beyond them an exact fraction would have millions of digits."""


_FORM: Final = "give a share, like 5% or 0.05 (all: 100%), or a count of records, like 20"
_FORM_IN_PYTHON: Final = f"{_FORM}; a float is a share from 0.0 to 1.0, an int a count"


class UnreadableInput(UserError):
    """More records of the input are unreadable than the user accepts. Nothing was asked."""


def accepted_of(value: str | float | Decimal | None) -> Fraction | None:
    """Return the number of unreadable records that a job may begin with: a count from 1, or a share below 1.

    ``value``: a share, which is a float, or a text with a point or a percent sign (``0.05``, ``5%``); or a count, which
    is an int, or a text of digits alone (``200``); 0 for none. The whole share (``1.0``, ``100%``) means any number,
    which is None. An empty text or None gives ``ACCEPTED``. Exact, so that 29 of 100 are accepted by 29%. Raises
    ``ValueError``.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return ACCEPTED
    text = str(value).strip()
    percent = text.endswith("%")
    number = text.removesuffix("%").strip()
    found = Fraction(-1)
    if not isinstance(value, bool) and isinstance(value, (str, Real, Decimal)):
        with contextlib.suppress(InvalidOperation):
            given = Decimal(number)
            if given == 0 or LEAST <= given <= MOST:
                found = Fraction(given) / (100 if percent else 1)
    counted = number.lstrip("+").isdecimal() if isinstance(value, str) else isinstance(value, Integral)
    if found < 0 or (found > 1 and (percent or not counted)):
        raise ValueError(f"{value!r}: {_FORM if isinstance(value, str) else _FORM_IN_PYTHON}")
    return None if found == 1 and (percent or not counted) else found


def note_counts(order: JobSpec, check: InputCheck) -> None:
    """Store digest and counts of the checked input in the job's places."""
    order.places |= {"digest": check.digest, "rows": str(check.rows), UNREADABLE: str(check.unreadable)}


def is_refused(check: InputCheck, accepted: Fraction | None) -> bool:
    """Return True if more records of the input are unreadable than accepted."""
    return accepted is not None and too_many_unreadable(accepted, check.unreadable, check.rows)


def refusal(name: str, check: InputCheck, accepted: Fraction | None, listed: str = "") -> str:
    """Return why the job does not begin, in one line: counts, and the first reasons with their line numbers.

    ``listed``: where all of them are listed, if anywhere.
    """
    records = check.rows + check.unreadable
    share = f"{100 * check.unreadable / records:.3g}%"
    reasons, last = [], ""
    for each in check.unreadable_first:
        reasons.append(f"{check.noun} {each.line}: {'the same' if each.message == last else each.message}")
        last = each.message
    if more := check.unreadable - len(reasons):
        reasons.append(f"and {more:,} more{f' ({listed})' if listed else ''}")
    are, them = ("is", "it") if check.unreadable == 1 else ("are", "them")
    found = f"{name}: {check.unreadable:,} of {records:,} records ({share}) {are} unreadable, {_words(accepted)}"
    return f"{found}: nothing was asked or paid; {'; '.join(reasons)}. Correct {them}, or go on without {them}"


def least_accepted(check: InputCheck) -> int:
    """Return the smallest whole percentage that accepts the unreadable records of this input."""
    records = check.rows + check.unreadable
    return -(-100 * check.unreadable // records)


def _words(accepted: Fraction | None) -> str:
    if not accepted:
        return "and none is accepted"
    return f"more than the {f'{int(accepted):,}' if accepted >= 1 else f'{float(100 * accepted):g}%'} accepted"
