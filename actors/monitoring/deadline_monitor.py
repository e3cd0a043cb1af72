"""A deadline is a promise that is watched: a line when it comes to be at risk, and one when it is so no more."""

from __future__ import annotations

from typing import Any

from actors.common.units import clock

AGAIN_SHARE = 0.1
"""Once at risk, it is so no more when this share of the time left would be to spare: so it says little twice."""


class DeadlineMonitor:
    """Looks at the facts of one run (``actors.monitoring.throughput.forecast``)."""

    def __init__(self) -> None:
        self._at_risk = False

    def news(self, facts: dict[str, Any]) -> str:
        """What is new, as one line for people; empty where nothing is."""
        risk, ends_at_s, deadline_at_s = facts["deadline_at_risk"], facts["projected_end_s"], facts["deadline_at_s"]
        if risk is None or deadline_at_s is None or facts["outcome"] != "running":
            return ""
        if risk and not self._at_risk:
            self._at_risk = True
            speed = f"at {facts['rate_per_s']:,.3g} a second"
            ends = f"{speed} it ends {clock(ends_at_s)}" if ends_at_s else "it stands still"
            return f"the deadline {clock(deadline_at_s)} is at risk: {ends}; at the deadline it stops, resumable"
        if not risk and self._at_risk and _spare(ends_at_s, deadline_at_s, facts.get("left_s")):
            self._at_risk = False
            return f"the deadline {clock(deadline_at_s)} is at risk no more: at this speed it ends {clock(ends_at_s)}"
        return ""


def _spare(ends_at_s: float | None, deadline_at_s: float, left_s: float | None) -> bool:
    return ends_at_s is not None and left_s is not None and deadline_at_s - ends_at_s >= AGAIN_SHARE * left_s


def risk_words(facts: dict[str, Any]) -> str:
    """The same in a few words, for a line of figures; empty where no deadline is at risk."""
    if not facts.get("deadline_at_risk"):
        return ""
    ends_at_s = facts.get("projected_end_s")
    return "deadline at risk" + (f": ends {clock(ends_at_s)}" if ends_at_s else "")
