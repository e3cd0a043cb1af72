"""List of a job's results, of which the sink is a projection.

If input order is wanted, a result waits for its turn. When failed rows are opened again (``events.RowsReopened``) their
results leave the list. New results are appended, or with input order take the places of the old ones; until then the
list ends before the first missing result. ``State.emitted`` is its length.

A retry that ends early loses nothing: while the job rests, rows without a new outcome have their earlier results in the
list and in the counts again (``restore``), at its end, or with input order in their places. K does not hold these
results; the list names them, and readers find them in the journal (``actors.history.result_history``). When the job
goes on, they are withdrawn again (``withdraw``). An outcome that is worth less than the earlier result does not replace
it (``policies.failures.failure.outweighs``): the earlier one stands.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import msgspec

from cortex.state import commands
from cortex.state.events import RowsReopened
from cortex.state.state import State
from policies.failures.failure import outweighs

Out = list[commands.Command]


def emit(
    k: State, value: Any, order: int | None, failed: bool, out: Out, row: str = "", kind: str = "", ending: str = ""
) -> None:  # fmt: skip
    """Emit a result to the sink, at once or in its turn. ``row`` and ``kind``: it failed, and may be asked again.

    ``ending``: ending of a reply that is no whole answer, and yet the result is no failure.
    """
    if k.restored is not None:
        withdraw(k)  # a late result of a job at rest; the step restores the others
    if failed:
        k.tally.failed += 1
        if row and k.withdrawn and (before := k.withdrawn.pop(row, None)) is not None and outweighs(before, kind):
            k.standing[row] = before, kind
            _go_on(k, out)
            return
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
    _go_on(k, out)


def _go_on(k: State, out: Out) -> None:
    """Emit held results whose turn has come, and pass places whose earlier result stands."""
    while k.again:
        first, row = next(iter(k.again.items()))
        if first in k.held:
            _give_out(k, first, first, out)
        elif row is None or row not in k.standing:
            return
        del k.again[first]
        k.emitted = next(iter(k.again), k.next_in_order)
    while k.next_in_order in k.held:
        _give_out(k, k.next_in_order, k.emitted, out)
        k.emitted += 1
        k.next_in_order += 1


def emit_held(k: State, out: Out) -> None:
    """Emit results whose turn will not come because the job has ended: what was paid for still reaches the user."""
    missing = [order for order, row in k.again.items() if order not in k.held and row is None]
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


def restore(k: State) -> None:
    """List and count the earlier results of reopened rows that have no better outcome. For a job that rests."""
    failed, emitted = k.tally.failed_for_good, k.emitted
    for kind in k.withdrawn.values():
        k.tally.failed += 1
        failed[kind] = failed.get(kind, 0) + 1
    for row, (kind, new) in k.standing.items():
        if new:
            _uncount(k, new)
            failed[kind] = failed.get(kind, 0) + 1
            k.standing[row] = kind, ""
    if k.again:
        k.emitted = next((order for order, row in k.again.items() if row is None and order not in k.held), -1)
        if k.emitted < 0:
            k.emitted = k.next_in_order
            while k.emitted in k.held:
                k.emitted += 1
    elif k.next_in_order == 0:
        k.emitted += len(k.withdrawn) + len(k.standing)
    k.restored = k.emitted - emitted


def as_at_rest(k: State) -> State:
    """Return K with the counts that it would have if the job came to rest now. For readers of a job that was killed."""
    if k.restored is not None or not (k.withdrawn or k.standing):
        return k
    tally = msgspec.structs.replace(k.tally, failed_for_good=dict(k.tally.failed_for_good))
    found = msgspec.structs.replace(k, tally=tally, standing=dict(k.standing))
    restore(found)
    return found


def withdraw(k: State) -> None:
    """Take back what ``restore`` listed and counted, since the rows are asked. The sink is written anew from its first
    result if it holds more than the list."""
    if k.restored is None:
        return
    k.emitted -= k.restored
    k.restored = None
    for kind in k.withdrawn.values():
        k.tally.failed -= 1
        _uncount(k, kind)
    if k.written_rows > k.emitted:
        k.written_rows, k.written_bytes, k.written_checksum = 0, 0, -1


def _uncount(k: State, kind: str, count: int = 1) -> None:
    """Count fewer rows that failed for good with this kind."""
    left = k.tally.failed_for_good.get(kind, 0) - count
    k.tally.failed_for_good[kind] = left
    if left <= 0:
        del k.tally.failed_for_good[kind]


def may_reopen(k: State, event: RowsReopened) -> bool:
    """Return True if these rows can be opened again now.

    The job must be at rest where the event found it, the event must be the next in number, and if another model is to
    be asked, nothing may be left that was made for the old one.
    """
    if k.outcome not in ("complete", "partial") or k.stopping == "cancel":
        return False
    if not k.source_ended and (not event.kind_of or event.base != k.position):
        return False
    if event.edition != k.edition + 1:
        return False
    return event.route in (None, k.terms.route) or not (k.live or k.flights or k.submissions)


def chained(k: State) -> int:
    """Return the length of the list without the restored results."""
    return k.emitted - (k.restored or 0)


def listed_before(k: State, event: RowsReopened) -> int:
    """Return how many results stay at the beginning of the list when these rows are opened again."""
    if event.ordered:
        return min(event.lines[0], chained(k))
    return chained(k) - sum(row not in k.withdrawn and row not in k.standing for row in event.keys)


def take_back(k: State, event: RowsReopened, out: Out) -> None:
    """Withdraw the results of these rows; the rows no longer count as failed. Of other rows whose results an earlier
    retry withdrew, the earlier results stand."""
    withdraw(k)
    kept = listed_before(k, event)
    k.edition = event.edition
    if k.tally.failed_row in event.keys:
        k.tally.failed_row = k.tally.failed_said = ""
    kinds = list(event.kinds)
    if event.kind_of:
        known = [kinds[place] for place in event.kind_of]
        _withdraw_these(k, dict(zip(event.keys, known, strict=True)))
    else:
        k.tally.failed -= len(event.keys)
        for kind, count in event.kinds.items():
            _uncount(k, kind, count)
    if event.ordered:
        _open_places(k, event, out)
    else:
        k.emitted = kept
    k.written_rows, k.written_bytes = event.written
    k.written_checksum = -1


def _withdraw_these(k: State, kinds: dict[str, str]) -> None:
    """Withdraw the results of the rows in ``kinds``, counted as failed unless they are withdrawn already."""
    before, failed = k.withdrawn, k.tally.failed_for_good
    for row, kind in kinds.items():
        if row not in before:
            k.tally.failed -= 1
            _uncount(k, kind)
    for row, kind in before.items():
        if row not in kinds:
            k.tally.failed += 1
            failed[kind] = failed.get(kind, 0) + 1
            k.standing[row] = kind, ""
    for row in kinds.keys() & k.standing.keys():
        del k.standing[row]
    k.withdrawn = kinds


def _open_places(k: State, event: RowsReopened, out: Out) -> None:
    """Open the places of these rows in the input's order, and leave those of other rows to the results that stand."""
    rows: tuple[str | None, ...] = event.keys if event.kind_of else (None,) * len(event.keys)
    for order in event.lines:
        k.held.pop(order, None)
        k.failed_held.pop(order, None)
    found = {**k.again, **dict(zip(event.lines, rows, strict=True))}
    k.again = {order: found[order] for order in sorted(found)}
    k.emitted = next(iter(k.again), k.emitted)
    _go_on(k, out)
