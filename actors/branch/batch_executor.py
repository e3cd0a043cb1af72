"""Message batches at a branch: orders of a channel, carried out with the provider's client.

The branch only holds the credential; all state is the channel's. Results are delivered to the channel a message at a
time, the next one after the previous one is on the channel's disk, so a branch holds at most one message of a batch,
however large the batch is. Results that were not delivered can be read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from actors.branch.prompt_limit import over_bound
from actors.ports.message_batches import THE_REST, BatchRequest, BatchStatus, MessageBatches
from actors.ports.model import Model
from actors.ports.runtime import Peer
from cortex.state.commands import Call
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind

LISTED_MAX = 5_000
"""Batches that are listed at most in the search for a lost one."""
MESSAGE_ROWS_MAX = 256
"""Results in one message at most."""
LINES_MORE = 1_000
"""Results beyond the number of requests with which a batch is read on: a provider may tell some twice."""
MESSAGE_BYTES_MAX = 90_000
"""Bytes of results in one message, about."""
OVERTIME_S = 0.5
"""Seconds for which a submission may pass its deadline, so that a client can tell what its own timeout means: far less
than ``settle_s``, after which the batch is believed not to exist."""


ALL_ROWS = 1 << 40
"""Number of results where one of them stands for all requests without a line: more than any batch has."""


class _Order(msgspec.Struct, frozen=True, array_like=True):
    """Encoding common to all orders: an array whose first element names the order."""


class NewestOrder(_Order, frozen=True, tag="newest"):
    """Return the account's newest batch; an empty name if there is none."""


class CheckSizeOrder(_Order, frozen=True, tag="weigh"):
    """Return for each of these calls the failure for which it must not be sent, or None."""

    calls: tuple[Call, ...]


class SubmitOrder(_Order, frozen=True, tag="submit"):
    """Submit a batch of these requests and return its name, unless the breaker of the route is open.

    No attempt goes on after ``until_s``, in seconds of the branch's own ``clock`` (``ClockOrder``). The clocks of two
    machines are never compared: one that is an hour ahead would refuse each order, one that is behind would submit a
    batch that the channel has given up already. A branch of another clock submits nothing.
    """

    rows: tuple[BatchRequest, ...]
    until_s: float
    clock: str


class ClockOrder(_Order, frozen=True, tag="clock"):
    """Return the branch's clock and its time: deadlines of submissions are set by it."""


class ListOrder(_Order, frozen=True, tag="since"):
    """List the batches made since the batch ``marker``, or since ``not_before_s`` by the provider's clock, whichever is
    later."""

    marker: str
    not_before_s: float


class StatusOrder(_Order, frozen=True, tag="look"):
    """Return the status of a batch."""

    name: str


class FirstIdOrder(_Order, frozen=True, tag="first"):
    """Return the custom id in the first line of a batch's results."""

    name: str


class ReadOrder(_Order, frozen=True, tag="read"):
    """Deliver all results of a batch to the channel, as results of submission ``number``; return their count."""

    name: str
    number: int
    requests: int = 0
    """Requests of the batch, which bound its results; 0: not known."""


class CancelOrder(_Order, frozen=True, tag="cancel"):
    """Cancel the requests of a batch that have not begun."""

    name: str


class DiscardOrder(_Order, frozen=True, tag="discard"):
    """Delete the files of a batch."""

    name: str


Order = (
    NewestOrder | CheckSizeOrder | SubmitOrder | ClockOrder | ListOrder | StatusOrder | FirstIdOrder | ReadOrder
    | CancelOrder | DiscardOrder
)  # fmt: skip


class OrderReply(msgspec.Struct, frozen=True, array_like=True):
    """Reply to an order: a failure, or the result of the order."""

    failure: Failure | None = None
    name: str = ""
    rows: int = 0
    statuses: tuple[BatchStatus, ...] = ()
    refused: tuple[Failure | None, ...] = ()
    given_back_s: float = 0.0
    """Seconds until the route's open breaker is probed, above 0, if a batch was not submitted because of it."""
    clock: str = ""
    """Clock of the branch, if it was asked for, or if a batch was not submitted because its order named another."""
    clock_s: float = 0.0
    """Time of that clock, in seconds."""


Result = tuple[str, Reply | None, Failure | None]
"""Outcome of one request: its custom id, and a reply or a failure."""

_order_decoder: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_reply_decoder = msgspec.msgpack.Decoder(OrderReply)
_results_decoder = msgspec.msgpack.Decoder(tuple[Result, ...])
_encoder = msgspec.msgpack.Encoder()


def encode(order: Order) -> bytes:
    """Return the encoded order."""
    return _encoder.encode(order)


def decode_reply(blob: bytes) -> OrderReply:
    """Return the decoded reply to an order."""
    return _reply_decoder.decode(blob)


def results_in(blob: bytes) -> tuple[Result, ...]:
    """Return the decoded results of a message."""
    return _results_decoder.decode(blob)


class BatchExecutor:
    """Part of a branch that carries out orders, any number at a time."""

    def __init__(self) -> None:
        self._under_way = 0

    @property
    def busy(self) -> bool:
        """True while an order is being carried out."""
        return self._under_way > 0

    async def carry_out(
        self, blob: bytes, model: Model, wait_s: Callable[[], float], channel: Peer, clock: tuple[str, float]
    ) -> bytes:
        """Carry out an order and return the encoded ``OrderReply``.

        ``wait_s`` returns the seconds that a submission must wait for the open breaker of the route; 0: none. ``clock``
        is the branch's clock, and its time in seconds.
        Raises ``PeerUnavailable`` or ``PeerGone`` if the channel does not accept results.
        """
        batches = getattr(model, "batches", None)
        if batches is None:
            why = f"{model.endpoint} takes no message batches: leave out --via"
            return _encoder.encode(OrderReply(Failure(FailureKind.BLOCKED, why, sent=False)))
        self._under_way += 1
        try:
            order = _order_decoder.decode(blob)
            if isinstance(order, SubmitOrder) and (seconds := wait_s()):
                return _encoder.encode(OrderReply(given_back_s=seconds))
            return _encoder.encode(await _done(order, model, batches, channel, clock))
        finally:
            self._under_way -= 1


async def _done(
    order: Order, model: Model, batches: MessageBatches, channel: Peer, clock: tuple[str, float]
) -> OrderReply:  # fmt: skip
    if isinstance(order, ClockOrder) or (isinstance(order, SubmitOrder) and order.clock != clock[0]):
        return OrderReply(clock=clock[0], clock_s=clock[1])
    if isinstance(order, SubmitOrder):
        return await _submitted(order, batches, clock[1])
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
    if isinstance(order, DiscardOrder):
        return OrderReply(await batches.discard(order.name))
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
    if left_s <= 0:  # of a kind for which the calls are asked anew: no try of the submission is used up
        return OrderReply(Failure(FailureKind.LOST, "the order to submit came too late", sent=False))
    try:
        async with asyncio.timeout(left_s + OVERTIME_S):  # a client may send several requests, each of them for as long
            found = await batches.submit(order.rows, left_s)
    except TimeoutError:
        found = Failure(FailureKind.TIMED_OUT, f"the batch was not submitted within {left_s:.0f} s")
    return OrderReply(found) if isinstance(found, Failure) else OrderReply(name=found)


async def _brought(order: ReadOrder, batches: MessageBatches, channel: Peer) -> OrderReply:
    """Deliver the results, one message at a time: the disk of the channel sets the pace."""
    count = size = 0
    ready: list[bytes] = []
    async for custom_id, outcome in batches.results(order.name):
        if not custom_id and isinstance(outcome, Failure):
            return OrderReply(outcome, rows=count)
        if order.requests and count >= order.requests + LINES_MORE:
            text = f"the results of batch {order.name} do not end: {count:,} of {order.requests:,} requests so far"
            return OrderReply(Failure(FailureKind.TRANSIENT, text, 200, answer_came=True), rows=count)
        pair = (outcome, None) if isinstance(outcome, Reply) else (None, outcome)
        blob = _encoder.encode((custom_id, *pair))
        if ready and (len(ready) >= MESSAGE_ROWS_MAX or size + len(blob) > MESSAGE_BYTES_MAX):
            await channel.ask("collected", order.number, _packed(ready))
            ready, size = [], 0
        ready.append(blob)
        size += len(blob)
        count = ALL_ROWS if custom_id == THE_REST else count + 1
    if ready:
        await channel.ask("collected", order.number, _packed(ready))
    return OrderReply(rows=count)


def _packed(blobs: list[bytes]) -> bytes:
    return _encoder.encode([msgspec.Raw(blob) for blob in blobs])
