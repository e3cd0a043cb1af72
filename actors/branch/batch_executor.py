"""What a branch does with message batches, at the order of a channel. It alone holds the key, and keeps nothing else.

Results are brought to the channel a message at a time, the next one when the last is on its disk: however large a batch
is, a message of it is all that is held here. What was not brought can be read again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from actors.branch.prompt_limit import over_bound
from actors.ports.message_batches import BatchRequest, BatchStatus, MessageBatches
from actors.ports.model import Model
from actors.ports.runtime import Peer
from cortex.state.commands import Call
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind

LISTED_MAX = 5_000
"""Batches that are looked through at most to find a lost one."""
MESSAGE_ROWS_MAX = 256
MESSAGE_BYTES_MAX = 90_000


class _Order(msgspec.Struct, frozen=True, array_like=True):
    """Common form between actors: an array whose first element names the order."""


class NewestOrder(_Order, frozen=True, tag="newest"):
    """Say the account's newest batch; an empty name where there is none."""


class CheckSizeOrder(_Order, frozen=True, tag="weigh"):
    """Say which of these calls must not be sent: one failure for each, or None."""

    calls: tuple[Call, ...]


class SubmitOrder(_Order, frozen=True, tag="submit"):
    """Make a batch of these; its name. Not begun, and not ended, after ``until_s``, in seconds since 1970."""

    rows: tuple[BatchRequest, ...]
    until_s: float


class ListOrder(_Order, frozen=True, tag="since"):
    """List the batches made since that one, or since that time, whichever comes later."""

    marker: str
    not_before_s: float


class StatusOrder(_Order, frozen=True, tag="look"):
    """Say how a batch stands."""

    name: str


class FirstIdOrder(_Order, frozen=True, tag="first"):
    """Say the custom id in the first line of a batch's results."""

    name: str


class ReadOrder(_Order, frozen=True, tag="read"):
    """Bring all results of a batch to the channel, as those of this submission; how many there were."""

    name: str
    number: int


class CancelOrder(_Order, frozen=True, tag="cancel"):
    """Have no further request of a batch worked off."""

    name: str


Order = NewestOrder | CheckSizeOrder | SubmitOrder | ListOrder | StatusOrder | FirstIdOrder | ReadOrder | CancelOrder


class OrderReply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to an order: a failure, or what the order asks for."""

    failure: Failure | None = None
    name: str = ""
    rows: int = 0
    statuses: tuple[BatchStatus, ...] = ()
    refused: tuple[Failure | None, ...] = ()


Result = tuple[str, Reply | None, Failure | None]
"""What became of one request: its custom id, and one of the two."""

_order_decoder: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_reply_decoder = msgspec.msgpack.Decoder(OrderReply)
_results_decoder = msgspec.msgpack.Decoder(tuple[Result, ...])
_encoder = msgspec.msgpack.Encoder()


def encode(order: Order) -> bytes:
    """An order as it travels."""
    return _encoder.encode(order)


def decode_reply(blob: bytes) -> OrderReply:
    """The answer in a message."""
    return _reply_decoder.decode(blob)


def results_in(blob: bytes) -> tuple[Result, ...]:
    """The results in a message."""
    return _results_decoder.decode(blob)


class BatchExecutor:
    """A branch's part: carries out orders, any number at a time."""

    def __init__(self) -> None:
        self._under_way = 0

    @property
    def busy(self) -> bool:
        """Whether an order is being carried out."""
        return self._under_way > 0

    async def carry_out(self, blob: bytes, model: Model, channel: Peer, now_s: float) -> bytes:
        """Do what an order asks for. Raises ``PeerUnavailable`` or ``PeerGone`` where the channel does not take
        results.
        """
        batches = getattr(model, "batches", None)
        if batches is None:
            why = f"{model.endpoint} takes no message batches: leave out --via"
            return _encoder.encode(OrderReply(Failure(FailureKind.BLOCKED, why, sent=False)))
        self._under_way += 1
        try:
            return _encoder.encode(await _done(_order_decoder.decode(blob), model, batches, channel, now_s))
        finally:
            self._under_way -= 1


async def _done(order: Order, model: Model, batches: MessageBatches, channel: Peer, now_s: float) -> OrderReply:
    if isinstance(order, SubmitOrder):
        return await _submitted(order, batches, now_s)
    if isinstance(order, CheckSizeOrder):
        return OrderReply(refused=tuple([await over_bound(model, call) for call in order.calls]))
    if isinstance(order, ReadOrder):
        return await _brought(order, batches, channel)
    if isinstance(order, FirstIdOrder):
        async for custom_id, outcome in batches.results(order.name):
            return OrderReply(outcome if isinstance(outcome, Failure) and not custom_id else None, custom_id)
        return OrderReply()
    if isinstance(order, CancelOrder):
        return OrderReply(await batches.cancel(order.name))
    if isinstance(order, StatusOrder):
        found: Any = await batches.look(order.name)
        return OrderReply(found) if isinstance(found, Failure) else OrderReply(statuses=(found,))
    marker, not_before_s = (order.marker, order.not_before_s) if isinstance(order, ListOrder) else ("", 0.0)
    found = await batches.listed(marker, not_before_s, LISTED_MAX if isinstance(order, ListOrder) else 1)
    if isinstance(found, Failure):
        return OrderReply(found)
    return OrderReply(name=found[0].name if found else "", statuses=tuple(found))


async def _submitted(order: SubmitOrder, batches: MessageBatches, now_s: float) -> OrderReply:
    left_s = order.until_s - now_s
    if left_s <= 0:
        return OrderReply(Failure(FailureKind.TRANSIENT, "the order to submit came too late", sent=False))
    found = await batches.submit(order.rows, left_s)
    return OrderReply(found) if isinstance(found, Failure) else OrderReply(name=found)


async def _brought(order: ReadOrder, batches: MessageBatches, channel: Peer) -> OrderReply:
    """One message on its way at a time: the disk of the channel sets the pace."""
    count = size = 0
    ready: list[bytes] = []
    async for custom_id, outcome in batches.results(order.name):
        if not custom_id and isinstance(outcome, Failure):
            return OrderReply(outcome, rows=count)
        pair = (outcome, None) if isinstance(outcome, Reply) else (None, outcome)
        blob = _encoder.encode((custom_id, *pair))
        if ready and (len(ready) >= MESSAGE_ROWS_MAX or size + len(blob) > MESSAGE_BYTES_MAX):
            await channel.ask("collected", order.number, _packed(ready))
            ready, size = [], 0
        ready.append(blob)
        size += len(blob)
        count += 1
    if ready:
        await channel.ask("collected", order.number, _packed(ready))
    return OrderReply(rows=count)


def _packed(blobs: list[bytes]) -> bytes:
    return _encoder.encode([msgspec.Raw(blob) for blob in blobs])
