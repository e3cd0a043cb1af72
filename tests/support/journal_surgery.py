"""Journals in SQLite as another course of events would have left them, with seals that are right."""

from __future__ import annotations

from typing import Any

from actors.journal import fact_digests
from cortex.journal import seals


def as_if_killed(journal: Any, seq: int) -> None:
    """Leave a journal as a kill behind turn ``seq`` does: later turns, snapshots and the end were never written."""
    journal._storage._db.execute("DELETE FROM turns WHERE seq > ?", (seq,))
    journal._storage._db.execute("DELETE FROM snapshots")
    without_facts(journal, "head", "ended")


def without_facts(journal: Any, *keys: str) -> None:
    """Remove facts, as if they had never been noted."""
    db = journal._storage._db
    db.executemany("DELETE FROM meta WHERE key = ?", [(key,) for key in keys])
    rows = db.execute("SELECT key, value FROM meta WHERE key != ?", (fact_digests.DIGESTS,)).fetchall()
    digests = fact_digests.encoded(fact_digests.of(rows))
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (fact_digests.DIGESTS, digests))


def with_turn(journal: Any, seq: int, blob: bytes) -> None:
    """Replace a turn, as if it had been written so."""
    db, own = journal._storage._db, 0
    for number, record in db.execute("SELECT seq, blob FROM turns ORDER BY seq").fetchall():
        kept = blob if number == seq else seals.opened(number, record)[0]
        sealed, own = seals.sealed(number, kept, own)
        db.execute("UPDATE turns SET blob = ? WHERE seq = ?", (sealed, number))
