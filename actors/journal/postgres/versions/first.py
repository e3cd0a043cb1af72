"""First schema: journals, the index of replies, and notes between processes."""

from __future__ import annotations

from alembic import op

revision = "1"
down_revision = None

TABLES = """
CREATE TABLE cortex_jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    epoch bigint NOT NULL DEFAULT 0,
    seq bigint NOT NULL DEFAULT 0,
    size bigint NOT NULL DEFAULT 0,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 20);
COMMENT ON TABLE cortex_jobs IS 'One row a job: each turn is appended by a change of it, so a stale epoch appends none';
CREATE TABLE cortex_meta (
    job bigint NOT NULL REFERENCES cortex_jobs ON DELETE CASCADE, key text NOT NULL, value bytea NOT NULL,
    PRIMARY KEY (job, key)
);
CREATE TABLE cortex_turns (job bigint NOT NULL, seq bigint NOT NULL, blob bytea NOT NULL, PRIMARY KEY (job, seq));
CREATE TABLE cortex_snapshots (
    job bigint NOT NULL REFERENCES cortex_jobs ON DELETE CASCADE, seq bigint NOT NULL, emitted bigint NOT NULL,
    blob bytea NOT NULL, PRIMARY KEY (job, seq)
);
CREATE TABLE cortex_replies (hash bytea PRIMARY KEY, job text NOT NULL, seq bigint NOT NULL, position integer NOT NULL);
CREATE INDEX cortex_replies_job ON cortex_replies (job);
CREATE TABLE cortex_indexed (job text PRIMARY KEY, seq bigint NOT NULL);
CREATE TABLE cortex_notes (
    kind text NOT NULL, name text NOT NULL, value bytea NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (kind, name)
)
"""


def upgrade() -> None:
    """Create the tables."""
    for statement in TABLES.split(";\n"):
        op.execute(statement)
