"""Result of ``run``: a job's rows, its answer and its figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from actors.api.session import RunOutcome
from actors.common.errors import UserError


class NoAnswer(UserError):
    """The answer of a job without one was read. The message gives the reason."""


class Result:
    """Result of a job. ``rows``: results in the order in which they finished. ``unreadable``: number of records of the
    input from which no row could be read, so that they have no result.

    ``answer`` raises ``NoAnswer`` if the job is not complete and has no answer, so that no failure is taken for an
    answer.
    """

    def __init__(self, ended: RunOutcome, rows: list[Any]) -> None:
        facts = ended.facts
        self.job: str = facts["job"]
        self.outcome: str = facts["outcome"]
        self.why: str = facts["why"] or facts["broken"]
        self._answer = ended.answer
        self.rows = rows
        self.calls: int = facts["calls"]
        self.failures: dict[str, int] = facts["failures"]
        self.cost_usd: float | None = facts["cost_usd"]
        self.unreadable: int = facts.get("rows_unreadable", 0)
        self.facts = facts

    @property
    def answer(self) -> Any:
        """Answer of the program. Raises ``NoAnswer``."""
        if self._answer is None and self.outcome != "complete":
            raise NoAnswer(f"job {self.job} is {self.outcome} and has no answer: {self.why}")
        return self._answer

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        lines = [f"{self.job}: {self.outcome}", _many(len(self.rows), "row"), _many(self.calls, "call")]
        if self.cost_usd is not None:
            lines.append(f"{self.cost_usd:.4f} USD")
        if self.facts["rows_failed"]:
            last = self.facts["failed_said"]
            lines.append(f"{self.facts['rows_failed']} failed" + (f", the last: {last}" if last else ""))
        if self.unreadable:
            lines.append(f"{self.unreadable} records of the input unreadable")
        if self.failures:
            lines.append("failed attempts: " + ", ".join(f"{n} {kind}" for kind, n in self.failures.items()))
        if self.why:
            lines.append(self.why)
        answer = "" if self._answer is None or self._answer == self.rows else f"\nanswer: {_short(self._answer)}"
        return f"<{'; '.join(lines)}>{answer}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _short(value: Any, length: int = 400) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= length else text[: length - 1] + "…"
