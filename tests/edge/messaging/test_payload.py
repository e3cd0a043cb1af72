"""Bytes that know what they say are never taken for more than they are."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from actors.branch.reply_outbox import MESSAGE_BYTES_MAX, MESSAGE_EVENTS_MAX, ReplyOutbox
from actors.cluster.sockets.serialization import opened, sealed
from actors.messaging.payload import Payload, batch_in, decoded, of_events
from cortex.journal import codec
from cortex.state import events
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure, FailureKind


def _answered(goal: int = 1, reply: Any = None) -> events.Answered:
    return events.Answered(
        goal, "0", 1, b"h", reply or Reply(b"{}", "end_turn", "m", Usage(1, 2)), 0.1, 0.2, "branch:0"
    )


def _parcel(*batch: events.Event) -> Payload:
    return of_events(codec.encode_batch(batch), batch)


def test_what_it_knows_is_what_decoding_gives() -> None:
    made = _parcel(_answered(1), _answered(2))
    assert batch_in(made) == codec.decode_batch(bytes(made)) == decoded(bytes(made))


def test_to_another_process_the_bytes_go_alone() -> None:
    made = _parcel(_answered())
    (there,) = opened(sealed((made,)))
    assert type(there) is bytes and there == made and batch_in(there) is None


@pytest.mark.parametrize(
    "reply",
    [
        Reply(b"{}", "end_turn", "m", Usage(True, 2)),
        Reply(b"{}", "end_turn", "m", Usage(1, 2.0)),  # type: ignore[arg-type]
        Reply(bytearray(b"{}"), "end_turn", "m", Usage()),  # type: ignore[arg-type]
        Reply(b"{}", FailureKind.LOST, "m", Usage()),
        Reply(b"{}", "end_turn", None, Usage()),  # type: ignore[arg-type]
        Reply(b"{}", "end_turn", "m", (1, 2, 3, 4)),  # type: ignore[arg-type]
    ],
)
def test_a_reply_that_would_be_read_otherwise_is_decoded(reply: Any) -> None:
    assert batch_in(_parcel(_answered(1), _answered(2, reply))) is None


def test_what_broke_is_decoded() -> None:
    broke = events.AttemptFailed(1, "0", 1, Failure(FailureKind.TRANSIENT, "cut"))
    assert batch_in(_parcel(_answered(), broke)) is None
    assert decoded(_parcel(broke)) == (broke,)


class _Channel:
    name = "channel:j"

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    async def ask(self, method: str, *args: Any) -> None:
        self.messages.append(args[2])


async def _brought(batch: list[events.Event]) -> list[bytes]:
    channel = _Channel()
    courier = ReplyOutbox("branch:0", "1", channel, lambda: False)  # type: ignore[arg-type]
    for event in batch:
        courier.add(event)
    while courier.busy:
        await _round()
    return channel.messages


async def _round() -> None:
    await asyncio.sleep(0)


async def test_messages_stay_within_their_bounds_whatever_the_sizes_are() -> None:
    sizes = [*[100] * 500, *[20_000] * 9, 200_000, *[100] * 300, *[40_000] * 5]
    batch: list[events.Event] = [
        _answered(goal, Reply(b"x" * size, "end_turn", "m", Usage())) for goal, size in enumerate(sizes)
    ]
    messages = await _brought(batch)
    found = [codec.decode_batch(bytes(each)) for each in messages]
    assert [event for some in found for event in some] == batch
    assert all(len(some) <= MESSAGE_EVENTS_MAX for some in found)
    assert all(len(each) <= MESSAGE_BYTES_MAX for each, some in zip(messages, found, strict=True) if len(some) > 1)
    assert messages[0] == msgspec.msgpack.encode(batch[:MESSAGE_EVENTS_MAX])


async def test_what_cannot_be_told_holds_up_nothing_else() -> None:
    batch: list[events.Event] = [_answered(1), _answered(2, Reply(b"{}", "end_turn", object(), Usage())), _answered(3)]  # type: ignore[arg-type]
    messages = await _brought(batch)
    assert [event.goal for each in messages for event in decoded(each)] == [1, 3]  # type: ignore[union-attr]
