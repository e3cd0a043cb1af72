"""Turns as text, for the transcript."""

from __future__ import annotations

from typing import Any

from cortex.state import events


def told(turn: events.Turn) -> str:
    """Return the events of a turn in a line."""
    return ", ".join(_told(event) for batch in turn.batches for event in batch)


def _told(event: Any) -> str:
    name = type(event).__name__
    if isinstance(event, events.PermitsGranted):
        text = " ".join(
            f"{field}={getattr(event, field)}" for field in event.__struct_fields__
            if field not in ("memo", "permits") and getattr(event, field) not in (0, -1, 0.0, "", b"")
        )  # fmt: skip
        return f"granted {event.permits} {text}".strip()
    if isinstance(event, events.AttemptFailed):
        return f"{event.goal}.{event.attempt} broke: {event.failure.kind}"
    if isinstance(event, events.GivenBack):
        return f"{event.goal}.{event.attempt} given back, generation {event.generation}"
    if isinstance(event, events.Answered):
        return f"{event.goal}.{event.attempt} answered"
    if isinstance(event, events.RowsRead):
        return f"fed {len(event.rows)} rows"
    if isinstance(event, events.Rejoined):
        return f"rejoined, epoch {event.epoch}, held {event.held}"
    return name.lower()
