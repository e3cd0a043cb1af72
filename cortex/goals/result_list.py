"""List of a job's results, of which the sink is a projection.

If input order is wanted, a result waits for its turn. When failed rows are opened again (``events.RowsReopened``) their
results leave the list. New results are appended, or with input order take the places of the old ones; until then the
list ends before the first missing result. ``State.emitted`` is its length.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from cortex.state import commands
from cortex.state.events import RowsReopened
from cortex.state.state import State

Out = list[commands.Command]


def emit(
    k: State, value: Any, order: int | None, failed: bool, out: Out, row: str = "", kind: str = "", ending: str = ""
) -> None:  # fmt: skip
    """Emit a result to the sink, at once or in its turn. ``row`` and ``kind``: it failed, and may be asked again.

    ``ending``: ending of a reply that is no whole answer, and yet the result is no failure.
    """
    if failed:
        k.tally.failed += 1
    else:
        k.tally.succeeded += 1
        if ending:
            k.tally.endings[ending] = k.tally.endings.get(ending, 0) + 1
    if order is None:
        out.append(commands.EmitResult(k.emitted, value, failed, row, kind))
        k.emitted += 1
        return
    k.held[order] = value
    if failed:
        k.failed_held[order] = row, kind
    while k.again:
        first = next(iter(k.again))
        if first not in k.held:
            return
        del k.again[first]
        _give_out(k, first, first, out)
        k.emitted = next(iter(k.again), k.next_in_order)
    while k.next_in_order in k.held:
        _give_out(k, k.next_in_order, k.emitted, out)
        k.emitted += 1
        k.next_in_order += 1


def emit_held(k: State, out: Out) -> None:
    """Emit results whose turn will not come because the job has ended: what was paid for still reaches the user."""
    missing = [order for order in k.again if order not in k.held]
    if k.again:
        k.again, k.emitted = {}, k.next_in_order - len(missing)
    for order in sorted(k.held):
        if order < k.next_in_order:
            _give_out(k, order, order - bisect_left(missing, order), out)
            continue
        _give_out(k, order, k.emitted, out)
        k.emitted += 1
        k.next_in_order = order + 1


def _give_out(k: State, order: int, index: int, out: Out) -> None:
    parts = k.failed_held.pop(order, None)
    row, kind = parts or ("", "")
    out.append(commands.EmitResult(index, k.held.pop(order), parts is not None, row, kind, order))


def may_reopen(k: State, event: RowsReopened) -> bool:
    """Return True if these rows can be opened again now.

    The job must be at rest and have read its source, the event must be the next in number, and if another model is to
    be asked, nothing may be left that was made for the old one.
    """
    if k.outcome not in ("complete", "partial") or k.stopping == "cancel" or not k.source_ended:
        return False
    if event.edition != k.edition + 1:
        return False
    return event.route in (None, k.terms.route) or not (k.live or k.flights or k.submissions)


def take_back(k: State, event: RowsReopened) -> None:
    """Withdraw the results of these rows; the rows no longer count as failed."""
    k.edition = event.edition
    k.tally.failed -= len(event.keys)
    if k.tally.failed_row in event.keys:
        k.tally.failed_row = k.tally.failed_said = ""
    for kind, count in event.kinds.items():
        left = k.tally.failed_for_good.get(kind, 0) - count
        k.tally.failed_for_good[kind] = left
        if left <= 0:
            del k.tally.failed_for_good[kind]
    if event.ordered:
        k.again = dict.fromkeys(sorted({*k.again, *event.lines}))
        k.emitted = next(iter(k.again), k.emitted)
    else:
        k.emitted -= len(event.keys)
    k.written_rows, k.written_bytes = event.written
