"""Index of remembered replies in PostgreSQL, written without waiting for the server's disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from actors.journal.postgres.connection import DatabaseConnection

_PUT = """
INSERT INTO cortex_replies (hash, job, seq, position)
SELECT each.hash, %s, each.seq, each.position
FROM unnest(%s::bytea[], %s::bigint[], %s::integer[]) AS each (hash, seq, position)
ON CONFLICT (hash) DO UPDATE SET job = excluded.job, seq = excluded.seq, position = excluded.position
"""
_INDEXED = "INSERT INTO cortex_indexed (job, seq) VALUES (%s, %s) ON CONFLICT (job) DO UPDATE SET seq = excluded.seq"


class DatabaseReplyIndex:
    """``ReplyIndex`` in a database."""

    def __init__(self, link: DatabaseConnection) -> None:
        self._link = link

    def seq_of(self, job: str) -> int:
        """Return the last turn of a job that is in the index."""
        rows = self._link.rows("SELECT seq FROM cortex_indexed WHERE job = %s", (job,))
        return int(rows[0][0]) if rows else 0

    def empty(self) -> bool:
        """Return True if the index is empty."""
        return not self._link.rows("SELECT 1 FROM cortex_replies LIMIT 1")

    def put(self, job: str, seq: int, rows: Sequence[tuple[bytes, int, int]]) -> None:
        """Add replies of a job, in the order of their hashes, so that concurrent writers cannot deadlock."""
        hashes, seqs, positions = (list(column) for column in zip(*sorted(rows), strict=True)) if rows else ([], [], [])
        self._link.together([
            ("SET LOCAL synchronous_commit = off", ()),
            (_PUT, (job, hashes, seqs, positions)),
            (_INDEXED, (job, seq)),
        ])  # fmt: skip

    def find(self, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, str, int, int]]:
        """Yield the replies of the hashes that are in the index."""
        asked = "SELECT hash, job, seq, position FROM cortex_replies WHERE hash = ANY(%s::bytea[])"
        for hash_, job, seq, position in self._link.rows(asked, (list(hashes),)):
            yield bytes(hash_), str(job), int(seq), int(position)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()
