"""Deadline monitor: one line when the deadline comes to be at risk, one when it no longer is."""

from __future__ import annotations

from typing import Any

from actors.common.units import clock

AGAIN_SHARE = 0.1
"""Hysteresis: a deadline is no longer at risk if the job would end early by this share of the time left."""


class DeadlineMonitor:
    """Monitor of the deadline of one run, from its facts (``actors.monitoring.throughput.foretold``)."""

    def __init__(self) -> None:
        self._at_risk = False

    def news(self, facts: dict[str, Any]) -> str:
        """Return the news as one line; empty if there is none."""
        risk, ends_at_s, deadline_at_s = facts["deadline_at_risk"], facts["projected_end_s"], facts["deadline_at_s"]
        if risk is None or deadline_at_s is None or facts["outcome"] != "running":
            return ""
        if risk and not self._at_risk:
            self._at_risk = True
            ends = f"at its rate of late the job ends {clock(ends_at_s)}" if ends_at_s else "the job stands still"
            return f"the deadline {clock(deadline_at_s)} is at risk: {ends}; at the deadline it stops, resumable"
        if not risk and self._at_risk and _spare(ends_at_s, deadline_at_s, facts.get("left_s")):
            self._at_risk = False
            now = f"at its rate of late the job ends {clock(ends_at_s)}"
            return f"the deadline {clock(deadline_at_s)} is no longer at risk: {now}"
        return ""


def _spare(ends_at_s: float | None, deadline_at_s: float, left_s: float | None) -> bool:
    return ends_at_s is not None and left_s is not None and deadline_at_s - ends_at_s >= AGAIN_SHARE * left_s


def risk_words(facts: dict[str, Any]) -> str:
    """Return the risk in a few words, for a line of figures; empty if the deadline is not at risk."""
    if not facts.get("deadline_at_risk"):
        return ""
    ends_at_s = facts.get("projected_end_s")
    return "deadline at risk" + (f": ends {clock(ends_at_s)}" if ends_at_s else "")
