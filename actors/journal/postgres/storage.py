"""Journal of one job in PostgreSQL: a row a turn, and one statement, thus one commit, a turn.

The statement updates the job's row from the previous turn to this one, only while the row's epoch is the writer's.
Therefore a writer whose epoch is over appends nothing, even with statements under way, and a turn whose commit was
never confirmed is appended once, however often it is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from actors.journal import fact_digests
from actors.journal.errors import removed
from actors.journal.journal import Damaged, Fenced, NoSuchJob, StoreError
from actors.journal.postgres.connection import DatabaseConnection, ran
from actors.journal.state_folder import advised
from cortex.journal.seals import BadSeal
from cortex.journal.snapshots import HEAD_BYTES, PieceSpan

if TYPE_CHECKING:  # a missing psycopg is reported in one line
    from psycopg import Connection

PAGE_BYTES = 4_000_000
"""Bytes of turns that are read at once, about."""
PAGE_TURNS = 16
"""Turns that are read at once at first; afterwards the number that is expected to make ``PAGE_BYTES``."""
PAGE_TURNS_MAX = 4_096
"""Turns that are read at once at most."""

_MINE = "SELECT id FROM cortex_jobs WHERE id = %(job)s AND (%(epoch)s = 0 OR epoch = %(epoch)s) FOR SHARE"
_NEXT = """
WITH mine AS (
    UPDATE cortex_jobs SET seq = %(last)s, size = size + %(size)s, changed_at = clock_timestamp()
    WHERE id = %(job)s AND epoch = %(epoch)s AND seq = %(before)s RETURNING id
)
"""
_APPEND = _NEXT + "INSERT INTO cortex_turns (job, seq, blob) SELECT id, %(last)s, %(blob)b FROM mine"
_APPEND_MANY = f"""{_NEXT}
INSERT INTO cortex_turns (job, seq, blob)
SELECT id, each.seq, each.blob FROM mine, unnest(%(seqs)s::bigint[], %(blobs)s::bytea[]) AS each (seq, blob)
"""
_TAKE = """
UPDATE cortex_jobs SET epoch = greatest(epoch + 1, %(least)s), changed_at = clock_timestamp()
WHERE id = %(job)s RETURNING epoch, seq
"""
_LOCK = "SELECT 1 FROM cortex_jobs WHERE id = %(job)s AND (%(epoch)s = 0 OR epoch = %(epoch)s) FOR UPDATE"
_META = f"""
WITH mine AS ({_MINE})
INSERT INTO cortex_meta (job, key, value) SELECT id, %(key)s, %(value)s FROM mine
ON CONFLICT (job, key) DO UPDATE SET value = excluded.value
"""
_FACTS = "SELECT key, value FROM cortex_meta WHERE job = %(job)s AND NOT starts_with(key, 'piece ')"
_PIECE = "piece "
_KEEP = f"""
WITH mine AS ({_MINE}), gone AS (
    DELETE FROM cortex_meta WHERE job IN (SELECT id FROM mine) AND starts_with(key, '{_PIECE}') AND NOT EXISTS (
        SELECT 1 FROM unnest(%(firsts)s::text[], %(lasts)s::text[]) AS kept (first, last)
        WHERE key COLLATE "C" BETWEEN first AND last
    )
)
SELECT count(*) FROM mine
"""
_SNAPSHOT = f"""
WITH mine AS ({_MINE})
INSERT INTO cortex_snapshots (job, seq, emitted, blob) SELECT id, %(seq)s, %(emitted)s, %(blob)s FROM mine
ON CONFLICT (job, seq) DO UPDATE SET emitted = excluded.emitted, blob = excluded.blob
"""
_OLD_SNAPSHOTS = f"""
WITH mine AS ({_MINE})
DELETE FROM cortex_snapshots WHERE job IN (SELECT id FROM mine) AND seq < (
    SELECT min(seq) FROM (
        SELECT seq FROM cortex_snapshots WHERE job = %(job)s ORDER BY seq DESC LIMIT %(keep)s
    ) AS newest
)
"""


def _piece(generation: int, number: int) -> str:
    """Return the key of the fact that holds a piece. Keys sort, as bytes, in the order in which the pieces were made.
    """
    return f"{_PIECE}{generation:010d} {number:010d}"


def made(link: DatabaseConnection, name: str) -> None:
    """Create the row of this job unless it exists."""
    link.count("INSERT INTO cortex_jobs (name) VALUES (%s) ON CONFLICT DO NOTHING", (name,))


class DatabaseStorage:
    """``Storage`` in a database. ``name``: name of the row, if it differs from the job's."""

    remote = True

    def __init__(self, link: DatabaseConnection, job: str, name: str = "") -> None:
        """Raise ``NoSuchJob`` if there is no such row."""
        self.job = job
        self._link = link
        rows = link.rows("SELECT id FROM cortex_jobs WHERE name = %s", (name or job,))
        if not rows:
            link.close()
            raise NoSuchJob(f"no job {job!r} in {link.address}; `{advised(link.address, 'jobs')}` lists what is there")
        self._id = int(rows[0][0])

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    # -- writing ---------------------------------------------------------------------------------------------------

    def _fenced(self) -> StoreError:
        """Return the error for a write that found no row of its epoch."""
        if not self._link.rows("SELECT 1 FROM cortex_jobs WHERE id = %s", (self._id,)):
            return removed(self.job)
        return Fenced(f"{self.job}: another run has taken the job over")

    def take_epoch(self, owner: bytes, least: int = 1) -> int:
        """Take the next epoch. The statement waits for a turn that is being committed; afterwards no older writer can
        commit.
        """


        def run(connection: Connection[Any]) -> int:
            rows = ran(connection, _TAKE, {"job": self._id, "least": least}).fetchall()
            if not rows:
                raise NoSuchJob(f"job {self.job!r} was removed")
            epoch, seq = map(int, rows[0])
            there = dict(ran(connection, _FACTS, {"job": self._id}).fetchall())
            facts = {"owner": owner}
            if "sealed" not in there:
                facts["sealed"] = b"%d %d" % (max(seq, int(bytes(there.get("dropped", b"0")))) + 1, epoch)
            self._put_facts(connection, facts, epoch)
            return epoch

        return self._link.transaction(run)

    def _put_facts(self, connection: Connection[Any], facts: Mapping[str, bytes], epoch: int) -> None:
        """Store facts and their checksums, within a transaction, one writer at a time. Raises ``Fenced``."""
        given = {"job": self._id, "epoch": epoch}
        if not ran(connection, _LOCK, given).fetchall():
            raise self._fenced()
        there = {key: bytes(value) for key, value in ran(connection, _FACTS, given).fetchall()}
        digests = self._digests(there.get(fact_digests.DIGESTS))
        if digests is None:
            digests = fact_digests.of(there.items())
        digests |= fact_digests.of(facts.items())
        for key, value in {**facts, fact_digests.DIGESTS: fact_digests.encoded(digests)}.items():
            ran(connection, _META, {**given, "key": key, "value": value})

    def newest_epoch(self) -> int:
        """Return the newest epoch that was taken; 0: none."""
        rows = self._link.rows("SELECT epoch FROM cortex_jobs WHERE id = %s", (self._id,))
        return int(rows[0][0]) if rows else 0

    def append(self, epoch: int, seq: int, blobs: Sequence[bytes]) -> None:
        """Commit turns. If they are refused, check whether an earlier, unconfirmed attempt has stored them."""
        given: dict[str, Any] = {
            "job": self._id, "epoch": epoch, "before": seq - 1, "last": seq + len(blobs) - 1,
            "size": sum(map(len, blobs)),
        }  # fmt: skip
        if len(blobs) == 1:
            statement, given["blob"] = _APPEND, blobs[0]
        else:
            statement = _APPEND_MANY
            given |= {"seqs": list(range(seq, seq + len(blobs))), "blobs": list(blobs)}
        if self._link.count(statement, given) == len(blobs):
            return
        there = [blob for _, blob in self.turns(seq - 1, seq + len(blobs) - 1)]
        if there == list(blobs):
            return
        if self.newest_epoch() == epoch:
            raise StoreError(f"{self.job}: there is another turn {seq} in {self._link.address} already")
        raise self._fenced()

    def put_snapshot(self, seq: int, emitted: int, blob: bytes, keep: int, epoch: int) -> None:
        """Store a snapshot and remove old ones."""
        given = {"job": self._id, "epoch": epoch, "seq": seq, "emitted": emitted, "blob": blob}
        old = [(_OLD_SNAPSHOTS, {"job": self._id, "epoch": epoch, "keep": keep})] if keep else []
        if self._link.together([(_SNAPSHOT, given), *old])[0] != 1:
            raise self._fenced()

    def set_meta(self, key: str, value: bytes, epoch: int) -> None:
        """Store a fact."""
        self._link.transaction(lambda connection: self._put_facts(connection, {key: value}, epoch))

    def put_piece(self, generation: int, number: int, blob: bytes, epoch: int) -> None:
        """Store a piece, in the table of facts."""
        self._mine(_META, epoch, key=_piece(generation, number), value=blob)

    def keep_pieces(self, spans: Sequence[PieceSpan], epoch: int) -> None:
        """Remove all other pieces."""
        firsts = [_piece(span.generation, span.first) for span in spans]
        lasts = [_piece(span.generation, span.last) for span in spans]
        given = {"job": self._id, "epoch": epoch, "firsts": firsts, "lasts": lasts}
        if not self._link.rows(_KEEP, given)[0][0]:
            raise self._fenced()

    def _mine(self, statement: str, epoch: int, **given: Any) -> None:
        if self._link.count(statement, {"job": self._id, "epoch": epoch, **given}) != 1:
            raise self._fenced()

    # -- removing --------------------------------------------------------------------------------------------------

    def zero_what_goes(self) -> None:
        """Do nothing: PostgreSQL overwrites no rows; a vacuum makes the space of removed rows available again."""

    def drop(self, upto: int, first_at_s: float, shrink: bool, epoch: int) -> None:
        """Remove turns. The job's row is locked, so the epoch cannot change meanwhile."""
        given = {"job": self._id, "epoch": epoch, "upto": upto}

        def run(connection: Connection[Any]) -> None:
            there = dict(ran(connection, _FACTS, given).fetchall())
            first = {} if "first_at_s" in there else {"first_at_s": b"%r" % first_at_s}
            self._put_facts(connection, {**first, "dropped": b"%d" % upto}, epoch)
            for statement in (
                "WITH gone AS (DELETE FROM cortex_turns WHERE seq <= %(upto)s AND job = %(job)s RETURNING "
                "octet_length(blob) AS size) UPDATE cortex_jobs SET size = size - coalesce((SELECT sum(size) FROM "
                "gone), 0) WHERE id = %(job)s",
                "DELETE FROM cortex_snapshots WHERE seq < %(upto)s AND job = %(job)s",
                f"DELETE FROM cortex_meta WHERE starts_with(key, '{_PIECE}') AND job = %(job)s",
            ):
                ran(connection, statement, given)

        self._link.transaction(run)
        if shrink:
            self._vacuum()

    def forget(self, figures: bytes, epoch: int) -> None:
        """Remove all rows, and make their space available again."""
        given = {"job": self._id, "epoch": epoch}

        def run(connection: Connection[Any]) -> None:
            if not ran(connection, _LOCK, given).fetchall():
                raise self._fenced()
            for statement in (
                "DELETE FROM cortex_turns WHERE job = %(job)s",
                "DELETE FROM cortex_snapshots WHERE job = %(job)s",
                "DELETE FROM cortex_meta WHERE key <> 'format' AND job = %(job)s",
                "UPDATE cortex_jobs SET size = 0, seq = 0 WHERE id = %(job)s",
            ):
                ran(connection, statement, given)
            self._put_facts(connection, {"forgotten": figures}, epoch)

        self._link.transaction(run)
        self._vacuum()

    def _vacuum(self) -> None:
        """Vacuum the tables. Without the right to do so, autovacuum does it later."""
        with contextlib.suppress(StoreError):
            self._link.count("VACUUM cortex_turns, cortex_snapshots, cortex_meta")

    # -- reading ---------------------------------------------------------------------------------------------------

    def meta(self, key: str) -> bytes | None:
        """Return a fact; None if it is not set."""
        asked = "SELECT key, value FROM cortex_meta WHERE job = %s AND key = ANY(%s)"
        found = {name: bytes(value) for name, value in self._link.rows(asked, (self._id, [key, fact_digests.DIGESTS]))}
        try:
            return fact_digests.checked(self._digests(found.get(fact_digests.DIGESTS)), key, found.get(key))
        except BadSeal:
            raise self._damaged(f"its fact {key!r}") from None

    def facts(self) -> dict[str, int] | None:
        """Return the checksums of the facts."""
        asked = "SELECT value FROM cortex_meta WHERE job = %s AND key = %s"
        rows = self._link.rows(asked, (self._id, fact_digests.DIGESTS))
        return self._digests(bytes(rows[0][0]) if rows else None)

    def _digests(self, blob: bytes | None) -> dict[str, int] | None:
        try:
            return fact_digests.decoded(blob)
        except BadSeal:
            raise self._damaged("the list of its facts") from None

    def _damaged(self, what: str) -> Damaged:
        return Damaged(f"job {self.job} in {self._link.address} is damaged: {what} is not what was written")

    def see_structure(self) -> None:
        """Do nothing: the server checks its pages if its cluster was made with checksums."""

    def see_stands(self) -> None:
        """Do nothing: each turn updates the job's row, and fails without it."""

    def idle_s(self) -> float | None:
        """Return the seconds since the job's row was changed, by the server's clock; None for a job without turns."""
        asked = "SELECT extract(epoch FROM clock_timestamp() - changed_at)::float8 FROM cortex_jobs WHERE id = %s"
        rows = self._link.rows(asked + " AND seq > 0", (self._id,))
        return max(0.0, float(rows[0][0])) if rows else None

    def last(self) -> int:
        """Return the number of the last turn that was appended; 0: none."""
        rows = self._link.rows("SELECT seq FROM cortex_jobs WHERE id = %s", (self._id,))
        return int(rows[0][0]) if rows else 0

    def turns(
        self, after: int, upto: int | None = None, *, down: bool = False, count: int | None = None,
        holding: Sequence[bytes] = (),
    ) -> Iterator[tuple[int, bytes]]:  # fmt: skip
        """Yield turns, page by page, up to the last one that existed at the start."""
        upto = self.last() if upto is None and count is None else upto
        low, high = after, (1 << 62) if upto is None else upto
        left, page = (1 << 62) if count is None else count, PAGE_TURNS
        where = "".join(" AND position(%s::bytea IN blob) > 0" for _ in holding)
        statement = (
            f"SELECT seq, blob FROM cortex_turns WHERE job = %s AND seq > %s AND seq <= %s{where} "
            f"ORDER BY seq {'DESC' if down else 'ASC'} LIMIT %s"
        )
        while left > 0 and low < high:
            asked = min(left, page)
            rows = self._link.rows(statement, (self._id, low, high, *holding, asked))
            yield from ((int(seq), bytes(blob)) for seq, blob in rows)
            if len(rows) < asked:
                return
            left -= asked
            low, high = (low, rows[-1][0] - 1) if down else (rows[-1][0], high)
            mean = 1 + sum(len(blob) for _, blob in rows) // asked
            page = max(PAGE_TURNS, min(PAGE_TURNS_MAX, PAGE_BYTES // mean))

    def snapshots(self, after: int, upto: int, emitted_max: int, count: int | None) -> Iterator[tuple[int, bytes]]:
        """Yield snapshots, latest first. Each is read on demand, since a snapshot may be large."""
        while count is None or count > 0:
            rows = self._link.rows(
                "SELECT seq, blob FROM cortex_snapshots WHERE job = %s AND seq > %s AND seq <= %s AND emitted <= %s "
                "ORDER BY seq DESC LIMIT 1", (self._id, after, upto, emitted_max),
            )  # fmt: skip
            if not rows:
                return
            upto = int(rows[0][0]) - 1
            count = None if count is None else count - 1
            yield upto + 1, bytes(rows[0][1])

    def heads(self, after: int) -> list[tuple[int, bytes]]:
        """Return the first bytes of snapshots."""
        asked = (
            f"SELECT seq, substring(blob FROM 1 FOR {HEAD_BYTES}) FROM cortex_snapshots WHERE job = %s AND seq > %s "
            "ORDER BY seq DESC"
        )
        return [(int(seq), bytes(head)) for seq, head in self._link.rows(asked, (self._id, after))]

    def piece(self, generation: int, number: int) -> bytes | None:
        """Return a piece; None if it does not exist."""
        asked = "SELECT value FROM cortex_meta WHERE job = %s AND key = %s"
        rows = self._link.rows(asked, (self._id, _piece(generation, number)))
        return bytes(rows[0][0]) if rows else None

    def count_pieces(self, span: PieceSpan | None) -> int:
        """Return the number of pieces."""
        asked = f"SELECT count(*) FROM cortex_meta WHERE job = %s AND starts_with(key, '{_PIECE}')"
        if span is None:
            return int(self._link.rows(asked, (self._id,))[0][0])
        given = (self._id, _piece(span.generation, span.first), _piece(span.generation, span.last))
        return int(self._link.rows(f'{asked} AND key COLLATE "C" BETWEEN %s AND %s', given)[0][0])

    def as_it_is(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which all reads see one moment."""
        return self._link.pinned()

    def size_bytes(self) -> int:
        """Return the bytes of the job's turns and snapshots."""
        return size_bytes(self._link, self.job)


def size_bytes(link: DatabaseConnection, job: str) -> int:
    """Return the bytes of a job's turns and snapshots, uncompressed."""
    rows = link.rows(
        "SELECT size + coalesce((SELECT sum(octet_length(blob)) FROM cortex_snapshots WHERE job = id), 0)::bigint + "
        "coalesce((SELECT sum(octet_length(value)) FROM cortex_meta WHERE job = id AND "
        f"starts_with(key, '{_PIECE}')), 0)::bigint FROM cortex_jobs WHERE name = %s", (job,),
    )  # fmt: skip
    return int(rows[0][0]) if rows else 0
