"""Limits of a job from options: of the command line, of Python, and of changes during a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from actors.common.units import clock, duration_s, share, time_at_s
from cortex.values.bounds.counts import WHOLE_MAX
from cortex.values.limits import Limits
from policies.estimates.price import nusd, usd_text
from policies.failures.timeout import TimeoutPolicy

_DIGITS_MAX = 20  # Python refuses to read a number of some thousand digits
NONE = "none"
"""Value of an option that removes a limit."""


def bounded(limits: Limits, asked: Mapping[str, Any], now_s: float) -> Limits:
    """Return ``limits`` with the options in ``asked`` applied. ``asked``: option name -> text or number; None: not
    given, ``none``: remove the limit.

    Raises ``ValueError`` with one line that names the option.
    """
    facts: dict[str, Any] = {}
    for name, value in asked.items():
        if value in (None, "", False):
            continue
        field, read, cleared = _READ[name]
        if isinstance(value, str) and value.strip().lower() == NONE and cleared is not _NEVER:
            facts[field] = cleared
            continue
        try:
            facts[field] = time_at_s(value, now_s) if name == "deadline" else read(value)
        except ValueError as error:
            raise ValueError(f"{option(name)}: {error}") from None
    if facts.get("concurrency", 0) > limits.window_rows:
        facts["window_rows"] = facts["concurrency"]
    found = msgspec.structs.replace(limits, **facts)
    _refuse_contradictions(found, asked)
    return found


def _refuse_contradictions(limits: Limits, asked: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for limits that are valid alone but not together."""
    hedge_s, goal_s = limits.hedge_after_s, limits.goal_timeout_s
    if hedge_s is not None and goal_s is not None and hedge_s >= goal_s:
        raise ValueError(f"--hedge {hedge_s:g}s is not below --goal-timeout {goal_s:g}s: give a shorter --hedge")
    attempt_s = limits.timeout.ceiling_s
    if hedge_s is not None and hedge_s >= attempt_s:
        raise ValueError(f"--hedge {hedge_s:g}s is not below --timeout {attempt_s:g}s: give a shorter --hedge")
    tokens, output = limits.max_job_tokens, limits.output_tokens_max
    if asked.get("max_output_tokens") and tokens is not None and tokens <= output:
        raise ValueError(
            f"--max-job-tokens {tokens} is too small for a reply of --max-output-tokens {output} and its prompt"
        )


def changes(before: Limits, after: Limits) -> list[str]:
    """Return the differences as texts: ``--max-cost $20 (was $5)``."""
    lines = []
    for name, (field, _, _) in _READ.items():
        then, now = getattr(before, field), getattr(after, field)
        if then != now:
            lines.append(f"{option(name)} {_shown(name, now)} (was {_shown(name, then)})")
    return lines


def in_words(limits: Limits) -> dict[str, str]:
    """Return the limits that users may set and that differ from the default: option -> text."""
    usual = Limits()
    return {
        option(name): _shown(name, getattr(limits, field))
        for name, (field, _, _) in _READ.items()
        if getattr(limits, field) != getattr(usual, field)
    }


def shown_bound(name: str, limits: Limits) -> str:
    """Return one limit as text, by the name of its option."""
    return _shown(name, getattr(limits, _READ[name][0]))


def option(name: str) -> str:
    """Return the flag of an option name."""
    return "--" + name.replace("_", "-")


def _shown(name: str, value: Any) -> str:
    if value is None:
        return NONE
    if name == "max_cost":
        return usd_text(value)
    if name == "deadline":
        return clock(value)
    if name == "timeout":
        return f"{value.ceiling_s:g}s" if value.fixed else NONE
    if name in ("goal_timeout", "hedge", "wait_blocked"):
        return f"{value:g}s"
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- one value -----------------------------------------------------------------------------------------------------


def _money(value: str | float) -> int:
    try:
        amount = nusd(str(value).strip().removeprefix("$"))
    except ValueError:
        amount = 0
    if amount <= 0:
        raise ValueError(f"{value!r}: give an amount of USD above zero, like 2.50")
    return amount


def _count(value: str | int) -> int:
    text = str(value).strip().replace("_", "")
    if not text.isdecimal() or len(text) > _DIGITS_MAX or not 0 < int(text) <= WHOLE_MAX:
        raise ValueError(f"{value!r}: give a whole number above zero and at most {WHOLE_MAX}")
    return int(text)


def _rate(value: str | float) -> float:
    return _positive(value, "a number a minute above zero, like 50")


def _weight(value: str | float) -> float:
    return _positive(value, "a number above zero; 1 is usual, 2 gets twice the share")


def _positive(value: str | float, form: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ValueError(f"{value!r}: give {form}")
    return found


def _headroom(value: str | float) -> float:
    return share(value, below_one=True)


def _failed(value: str | float) -> float:
    """Return the number of failed rows that ends a job: a count from 1, or a share below 1. ``1`` is one row; ``100%``
    is refused."""
    text = str(value).strip()
    found = 0.0
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        pass
    whole = found >= 1 and found == int(found) and not text.endswith("%") if found < float("inf") else False
    if not (whole or 0 < found < 1):
        raise ValueError(f"{value!r}: give a count of rows from 1, or a share below 1, like 200, 0.1 or 10%")
    return found


def _timeout(value: str | float) -> TimeoutPolicy:
    """The same timeout for each attempt."""
    seconds = duration_s(value)
    return TimeoutPolicy(floor_s=seconds, ceiling_s=seconds)


_NEVER = object()
"""Marks a limit that cannot be removed."""

_READ: dict[str, tuple[str, Callable[[Any], Any], Any]] = {
    "max_cost": ("max_cost_nusd", _money, None),
    "max_job_tokens": ("max_job_tokens", _count, None),
    "max_output_tokens": ("output_tokens_max", _count, _NEVER),
    "prompt_tokens_max": ("prompt_tokens_max", _count, None),
    "concurrency": ("concurrency", _count, _NEVER),
    "rpm": ("requests_per_min", _rate, None),
    "itpm": ("input_tokens_per_min", _rate, None),
    "otpm": ("output_tokens_per_min", _rate, None),
    "headroom": ("headroom", _headroom, 0.0),
    "priority": ("priority", _weight, _NEVER),
    "deadline": ("deadline_at_s", float, None),
    "goal_timeout": ("goal_timeout_s", duration_s, None),
    "timeout": ("timeout", _timeout, TimeoutPolicy()),
    "max_failed": ("max_failed", _failed, None),
    "warm_prefix": ("warm_prefix", bool, False),
    "hedge": ("hedge_after_s", duration_s, None),
    "wait_blocked": ("blocked_wait_s", duration_s, 0.0),
}
"""Option -> field of ``Limits``, parser of the value, value after ``none``."""

OPTIONS = tuple(_READ)
