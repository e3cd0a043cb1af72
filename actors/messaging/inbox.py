"""What waits for a channel's next turn: messages as they came, and what the turn before is to be remembered by."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from cortex.journal import codec
from cortex.state import commands, events
from cortex.state.state import flight_key

TURN_EVENTS_MAX = 4_096
"""Events in one turn at most, so that a flood cannot hold up the commit of what came first."""

LINES_KEPT = 1_000
LINE_CHARACTERS_MAX = 2_000
"""Of what a program says to whoever watches: they look several times a second."""


FED = str(events.RowsRead.__struct_config__.tag)

_encoder = msgspec.msgpack.Encoder()
_rows_decoder = msgspec.msgpack.Decoder(tuple[events.Row, ...])


class InboxEntry:
    """One message in the inbox: its bytes, for the journal; its events, where they are known already."""

    __slots__ = ("batch", "blob", "durable", "size")

    def __init__(
        self, blob: bytes, size: int, durable: asyncio.Future[None] | None, batch: tuple[events.Event, ...] | None
    ) -> None:
        self.blob, self.size, self.durable, self.batch = blob, size, durable, batch


def entry(batch: Iterable[events.Event]) -> InboxEntry:
    """Events of the channel's own."""
    known = tuple(batch)
    return InboxEntry(codec.encode_batch(known), len(known), None, known)


def fed_entry(rows: bytes, start: int, position: int, ended: bool) -> InboxEntry:
    """A window of a source, as it came: its rows are decoded once, and encoded no more. Raises ``DecodeError``."""
    window = _rows_decoder.decode(rows)
    blob = _encoder.encode(([FED, msgspec.Raw(rows), start, position, ended],))
    return InboxEntry(blob, len(window), None, (events.RowsRead(window, start, position, ended),))


def split(inbox: list[InboxEntry]) -> tuple[list[InboxEntry], list[InboxEntry]]:
    """What goes into the next turn, and what waits for a later one."""
    if len(inbox) == 1:
        return inbox, []
    count = size = 0
    for each in inbox:
        if count and size + each.size > TURN_EVENTS_MAX:
            break
        count, size = count + 1, size + each.size
    return inbox[:count], inbox[count:]


def settle(entries: Iterable[InboxEntry], error: Exception | None = None) -> None:
    """Whoever waits for these to be on disk hears that they are, or why they never will be."""
    for each in entries:
        if each.durable is None or each.durable.done():
            continue
        if error is not None:
            each.durable.set_exception(error)
        else:
            each.durable.set_result(None)


class DurableTurn:
    """What is on disk with a turn, as far as a channel has something to do for it."""

    __slots__ = ("count", "ended", "granted", "paid")

    def __init__(self, seq: int, turn: events.Turn) -> None:
        """``seq``: the turn's number."""
        self.paid: list[tuple[bytes, int, int]] = []
        """Replies that can be remembered: hash, turn, place in it."""
        self.ended: list[int] = []
        """Attempts that have come back, as flights are named."""
        self.granted: list[events.PermitsGranted] = []
        position, paid, ended, answered = 0, self.paid, self.ended, events.Answered
        for batch in turn.batches:
            for event in batch:
                if type(event) is answered:  # nearly every event is one
                    paid.append((event.hash, seq, position))
                    ended.append(event.goal << 20 | event.attempt)  # ``flight_key``
                elif type(event) is events.AttemptFailed:
                    self.ended.append(flight_key(event.goal, event.attempt))
                elif type(event) is events.PermitsGranted:
                    self.granted.append(event)
                position += 1
        self.count = position
        """Of all events."""


class ProgramLog:
    """What the program of a channel says, as whoever asks for its status hears it: each line once."""

    def __init__(self) -> None:
        self._epoch = 0
        self.count = 0
        """Lines that were heard, of this incarnation of the channel."""

    def news(self, facts: dict[str, Any]) -> list[str]:
        """What is new in a status that was asked for with ``said``."""
        lines = facts["lines"]
        if facts["epoch"] > self._epoch:  # one that was started again counts from the first line on
            if self.count:
                lines = []  # but those were not asked for
            self._epoch, self.count = facts["epoch"], 0
        elif facts["epoch"] < self._epoch:
            return []
        new = [line for number, line in lines if number > self.count]  # two may have asked at once
        self.count = max([self.count, *(number for number, _ in lines)])
        return new


class PendingGoalRecords:
    """What a traced program made in a turn, until the next turn takes it along: it needs no commit of its own."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._made: list[events.Event] = []
        self._lines: deque[tuple[int, str]] = deque(maxlen=LINES_KEPT)
        self._count = 0

    def take(self, command: commands.RecordGoal | commands.LogLine) -> None:
        """It was made; or said, to whoever watches."""
        if isinstance(command, commands.RecordGoal):
            self._made.append(events.GoalMade(command.goal, command.kind, command.value))
        else:
            self.add_line(command.text)

    def add_line(self, text: str) -> None:
        """A line for whoever watches: the program's own, or a child job's."""
        self._count += 1
        self._lines.append((self._count, text[:LINE_CHARACTERS_MAX]))

    def lines(self, after: int) -> list[tuple[int, str]]:
        """What the program has said since so many lines of its, each with its number."""
        return [line for line in self._lines if line[0] > after] if self._count > after else []

    def before(self, taken: list[InboxEntry]) -> list[InboxEntry]:
        """The entries of a turn, with what the turn before made ahead of them."""
        if not self._made:
            return taken
        made, self._made = self._made, []
        return [entry(made), *taken]
