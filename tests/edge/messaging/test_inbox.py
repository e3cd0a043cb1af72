"""What waits for a channel's next turn."""

from __future__ import annotations

import msgspec

from actors.history.results import READ_BYTES_MAX, READ_MAX, ResultBuffer
from actors.messaging.inbox import fed_entry
from cortex.journal import codec
from cortex.state import events
from cortex.state.commands import EmitResult


def test_a_window_stands_in_the_journal_as_its_driver_sent_it() -> None:
    rows = (events.Row("r1", b'{"max_tokens":1}', 1), events.Row("r2", b"", 0, "no such model"))
    fed = events.RowsRead(rows, 10, 90, True)
    made = fed_entry(msgspec.msgpack.encode(rows), 10, 90, True)
    assert (made.blob, made.size, made.batch) == (codec.encode_batch([fed]), 2, (fed,))
    assert codec.decode_batch(made.blob) == (fed,)


def test_results_are_read_from_any_index_on_near_the_end_or_far_from_it() -> None:
    outlet, count = ResultBuffer(5), 3 * READ_MAX
    for index in range(5, 5 + count):
        outlet.add([EmitResult(index, b"%d" % index)])
    last = 4 + count
    for index in (5, 6, 4 + READ_MAX, last - READ_MAX, last - READ_MAX + 1, last - 3, last, last + 1, last + 9):
        wanted = [(at, b"%d" % at) for at in range(index, min(index + READ_MAX, last + 1))]
        assert outlet.read(index) == wanted
    assert outlet.read(4) is None


def test_what_is_read_at_once_ends_with_the_result_that_makes_it_large() -> None:
    outlet, size = ResultBuffer(0), READ_BYTES_MAX // 3
    outlet.add([EmitResult(index, b"x" * size) for index in range(3)])
    outlet.add([EmitResult(3, b"x" * size), EmitResult(4, "y" * (size + 1)), EmitResult(5, "short")])
    read = [[index for index, _ in outlet.read(first) or ()] for first in (0, 1, 2, 3, 5)]
    assert read == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4], [3, 4, 5], [5]]
