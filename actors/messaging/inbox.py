"""Inbox of a channel: messages for the next turn, and the parts of the last turn that are needed once it is on disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from cortex.journal import codec
from cortex.state import commands, events
from cortex.state.state import State, flight_key

TURN_EVENTS_MAX = 4_096
"""Events of one turn at most, so that a flood cannot delay the commit of the first events."""

LINES_KEPT = 1_000
"""Lines of the program that are kept for status requests."""
LINE_CHARACTERS_MAX = 2_000
"""Characters of a program's line for observers, who ask several times a second."""


FED = str(events.RowsRead.__struct_config__.tag)

_encoder = msgspec.msgpack.Encoder()
_rows_decoder = msgspec.msgpack.Decoder(tuple[events.Row, ...])


class InboxEntry:
    """Message in the inbox: its bytes, for the journal, and its events if they are decoded already."""

    __slots__ = ("batch", "blob", "durable", "size")

    def __init__(
        self, blob: bytes, size: int, durable: asyncio.Future[None] | None, batch: tuple[events.Event, ...] | None
    ) -> None:
        self.blob, self.size, self.durable, self.batch = blob, size, durable, batch


def entry(batch: Iterable[events.Event]) -> InboxEntry:
    """Return an entry with the channel's own events."""
    known = tuple(batch)
    return InboxEntry(codec.encode_batch(known), len(known), None, known)


def fed_entry(rows: bytes, start: int, position: int, ended: bool) -> InboxEntry:
    """Return an entry with a window of a source. Its rows are decoded once and not encoded again. Raises
    ``DecodeError``.
    """
    window = _rows_decoder.decode(rows)
    blob = _encoder.encode(([FED, msgspec.Raw(rows), start, position, ended],))
    return InboxEntry(blob, len(window), None, (events.RowsRead(window, start, position, ended),))


def split(inbox: list[InboxEntry]) -> tuple[list[InboxEntry], list[InboxEntry]]:
    """Split the inbox into the entries of the next turn and those of later turns."""
    if len(inbox) == 1:
        return inbox, []
    count = size = 0
    for each in inbox:
        if count and size + each.size > TURN_EVENTS_MAX:
            break
        count, size = count + 1, size + each.size
    return inbox[:count], inbox[count:]


def settle(entries: Iterable[InboxEntry], error: Exception | None = None) -> None:
    """Resolve the futures of entries: they are on disk, or ``error`` says why they never will be."""
    for each in entries:
        if each.durable is None or each.durable.done():
            continue
        if error is not None:
            each.durable.set_exception(error)
        else:
            each.durable.set_result(None)


class DurableTurn:
    """Contents of a turn for which the channel acts once the turn is on disk."""

    __slots__ = ("count", "ended", "granted", "paid")

    def __init__(self, seq: int, turn: events.Turn) -> None:
        """Collect the contents of turn number ``seq``."""
        self.paid: list[tuple[bytes, int, int]] = []
        """Replies for the index of replies: hash, turn, position."""
        self.ended: list[int] = []
        """Attempts that have ended, by ``flight_key``."""
        self.granted: list[events.PermitsGranted] = []
        position, answered = 0, {events.Answered}
        for batch in turn.batches:
            if set(map(type, batch)) == answered:  # nearly all batches
                some: Any = batch
                self.paid += [(event.hash, seq, place) for place, event in enumerate(some, position)]
                self.ended += [event.goal << 20 | event.attempt for event in some]  # ``flight_key``
            else:
                self._collect(seq, position, batch)
            position += len(batch)
        self.count = position
        """Number of all events."""

    def settled(self, k: State) -> list[int]:
        """Return the attempts that have ended. One that is still in K was named by a reply to another question."""
        return [key for key in self.ended if key not in k.flights] if k.unmet else self.ended

    def _collect(self, seq: int, position: int, batch: Sequence[events.Event]) -> None:
        """Collect a batch of events of several kinds, of which the first has this position in the turn."""
        for place, event in enumerate(batch, position):
            if isinstance(event, events.Answered):
                self.paid.append((event.hash, seq, place))
                self.ended.append(flight_key(event.goal, event.attempt))
            elif isinstance(event, events.AttemptFailed | events.GivenBack):
                self.ended.append(flight_key(event.goal, event.attempt))
            elif isinstance(event, events.PermitsGranted):
                self.granted.append(event)


class ProgramLog:
    """Lines of a channel's program, as seen by one client of its status: each line once."""

    def __init__(self) -> None:
        self._epoch = 0
        self.count = 0
        """Lines received from this incarnation of the channel."""

    def news(self, facts: dict[str, Any]) -> list[str]:
        """Return the new lines in a status that was requested with ``count``."""
        lines = facts["lines"]
        if facts["epoch"] > self._epoch:  # a restarted channel counts lines from the first
            if self.count:
                lines = []  # its earlier lines were not requested
            self._epoch, self.count = facts["epoch"], 0
        elif facts["epoch"] < self._epoch:
            return []
        new = [line for number, line in lines if number > self.count]  # two requests may overlap
        self.count = max([self.count, *(number for number, _ in lines)])
        return new


class PendingGoalRecords:
    """Goals recorded and lines logged by a traced program, kept for the next turn, so that they need no commit of their
    own.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._made: list[events.Event] = []
        self._lines: deque[tuple[int, str]] = deque(maxlen=LINES_KEPT)
        self._count = 0

    def take(self, command: commands.RecordGoal | commands.LogLine) -> None:
        """Add a recorded goal, or a line of the program."""
        if isinstance(command, commands.RecordGoal):
            self._made.append(events.GoalMade(command.goal, command.kind, command.value))
        else:
            self.add_line(command.text)

    def add_line(self, text: str) -> None:
        """Add a line for observers: of the program, or of a child job."""
        self._count += 1
        self._lines.append((self._count, text[:LINE_CHARACTERS_MAX]))

    def lines(self, after: int) -> list[tuple[int, str]]:
        """Return (number, line) of the lines after this number."""
        return [line for line in self._lines if line[0] > after] if self._count > after else []

    def before(self, taken: list[InboxEntry]) -> list[InboxEntry]:
        """Return the entries of a turn, preceded by the goals recorded in the previous turn."""
        if not self._made:
            return taken
        made, self._made = self._made, []
        return [entry(made), *taken]
