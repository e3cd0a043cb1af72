"""Watch over shards: each result once, in one order, one cap, and counts that add up."""

from __future__ import annotations

from typing import Any

import msgspec


def together(watch: Any, name: str, sink: Any, rows: int, ordered: bool, lies: bool) -> None:
    """Check that the sink of a job with shards holds each result of each shard once, and that its figures are theirs.

    ``lies``: journals may have lost their ends. A shard that rested with its job may then come to rest again, at other
    figures, and the job hears of them only when it goes on. What a shard paid in lost turns, its job alone may know. A
    complete job with a whole sink does not go on: it has the figures, and its sink the results, that shards have lost.
    """
    parts = [watch.jobs[each] for each in sorted(watch.jobs) if each.startswith(f"{name}~")]
    emitted = [value for part in parts for value in part.emitted]
    keys = [msgspec.json.decode(value)["custom_id"] for value in sink.values]
    cut = lies and rows and any(part.k is None or part.k.outcome != "complete" for part in parts)
    if len(keys) != len(set(keys)) or not (cut or set(sink.values) <= set(emitted)):
        watch.say(f"{name}: the sink holds other results than the journals of its shards")
    if rows and sorted(keys) != sorted(f"r{number}" for number in range(rows)):
        watch.say(f"{name} is complete with {len(set(keys))} of {rows} rows")
    if ordered and keys != [f"r{number}" for number in range(len(keys))]:
        watch.say(f"{name}: results are not in the order of the input")
    if cut:
        return
    if not ordered and len(keys) != len(emitted):
        watch.say(f"{name}: {len(emitted)} results, the sink holds {len(keys)}")
    if sink.outcome == "partial" and lies:
        return
    whole, k = watch.jobs[name].k, [part.k for part in parts if part.k is not None]
    assert whole is not None
    spent = sum(each.ledger.known_nusd + each.ledger.assumed_nusd for each in k)
    own = whole.ledger.known_nusd + whole.ledger.assumed_nusd
    if own < spent or (own > spent and not lies):
        watch.say(f"{name}: its shards have spent {spent} nUSD, it says otherwise: {whole.ledger}")
    if whole.tally.succeeded != sum(each.tally.succeeded for each in k):
        watch.say(f"{name}: it counts {whole.tally.succeeded} rows, its shards do not")


def money(watch: Any, record: Any) -> None:
    """Check that shards together never exceed the cap of the whole job."""
    name = record.name.rpartition("~")[0]
    root = watch.jobs.get(name)
    cap = root.k.terms.limits.max_cost_nusd if root is not None and root.k is not None else None
    parts = [each.k for part, each in watch.jobs.items() if part.rpartition("~")[0] == name]
    total = sum(part.ledger.committed_nusd for part in parts if part is not None)
    if cap is not None and total > cap:
        watch.say(f"{name}: its shards have committed {total} nUSD, the cap is {cap}")
