"""Tables of an older release become this one's: a second version of the schema, made up here, as a release would add it."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from actors.journal.journal import StateFolder, StoreError
from actors.journal.postgres import migrations
from tests.support.postgres_server import Server

SECOND = """
from alembic import op
revision, down_revision = "2", "1"
def upgrade():
    op.execute("ALTER TABLE cortex_jobs ADD COLUMN colour text NOT NULL DEFAULT 'red'")
    op.execute({more!r})
"""
COLUMN = (
    "SELECT count(*) FROM information_schema.columns WHERE column_name = 'colour' AND table_schema = current_schema()"
)


def _next_release(folder: Path, monkeypatch: pytest.MonkeyPatch, more: str = "SELECT 1") -> None:
    versions = folder / "versions"
    if not versions.exists():
        shutil.copytree(migrations.VERSIONS, versions, ignore=shutil.ignore_patterns("__pycache__"))
    (versions / "second.py").write_text(SECOND.format(more=more))
    monkeypatch.setattr(migrations, "VERSIONS", versions)
    monkeypatch.setattr(migrations, "VERSION", 2)


def _written(database: str) -> None:
    source = StateFolder(database).prepare().journal("j", create=True)
    source.take_epoch(b"{}")
    source.append([b"of the older one"])
    source.close()


def test_the_tables_of_an_older_release_are_brought_up_by_the_first_that_begins(
    postgres: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _written(database)
    with monkeypatch.context() as release:
        _next_release(tmp_path, release)
        for look in (lambda: StateFolder(database).jobs(), lambda: StateFolder(database).journal("j")):
            with pytest.raises(
                StoreError, match=r"of an older release \(schema 1\): begin or resume a job in it"
            ) as caught:
                look()
            assert "\n" not in str(caught.value)
        assert postgres.does(COLUMN, at=database) == [(0,)], "looking changes nothing"

        failed: list[BaseException] = []

        def begin() -> None:
            try:
                StateFolder(database).prepare()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=begin) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert failed == [], "three that begin at once bring them up once"
        source = StateFolder(database).journal("j")
        assert list(source.blobs(9)) == [(1, b"of the older one")]
        source.take_epoch(b"{}")
        assert source.append([b"of the newer one"]) == 2
        source.close()
        assert postgres.does("SELECT colour FROM cortex_jobs", at=database) == [("red",)]
    text = r"of a newer release \(schema 2, this one knows 1\): upgrade to use it"
    for use in (lambda: StateFolder(database).prepare(), lambda: StateFolder(database).journal("j")):
        with pytest.raises(StoreError, match=text):
            use()


def test_a_step_that_fails_leaves_the_older_tables_as_they_were(
    postgres: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _written(database)
    with monkeypatch.context() as release:
        _next_release(tmp_path, release, "ALTER TABLE cortex_nothing ADD COLUMN x text")
        with pytest.raises(StoreError, match='"cortex_nothing" does not exist') as caught:
            StateFolder(database).prepare()
        assert "\n" not in str(caught.value)
    assert postgres.does(COLUMN, at=database) == [(0,)], "all of it or nothing"
    source = StateFolder(database).journal("j")
    assert list(source.blobs(9)) == [(1, b"of the older one")], "the older release goes on"
    source.close()
