"""Tables at an object store, on a server of this machine that speaks S3: in, out, and what a store that refuses says."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.table_files import ASK, SIM, ids, table

SECRET = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def store(served: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bucket of its own, and the variables by which the driver finds the server."""
    import fsspec

    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": served,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    files = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)
    if not files.exists("tickets"):
        files.mkdir("tickets")
    for name in files.ls("tickets"):
        files.rm(name)
    return files


def test_from_a_bucket_and_into_it(cortex: Any, store: Any) -> None:
    table(Path("t.csv"), 7)
    store.put_file("t.csv", "tickets/t.csv")
    command = ("batch", "s3://tickets/t.csv", *ASK, "-o", "s3://tickets/out.csv", *SIM, "--json")
    done = cortex(*command)
    assert done.code == 0, done.err
    assert done.last["output"] == "s3://tickets/out.csv"
    rows = list(csv.DictReader(io.StringIO(store.cat_file("tickets/out.csv").decode())))
    assert sorted(row["ticket_id"] for row in rows) == [f"t{i}" for i in range(7)]
    again = cortex(*command)
    assert (again.code, again.last["paid_calls"]) == (0, 7)
    assert "nothing is asked again" in again.err
    assert not [path for path in Path(".").rglob("*") if path.suffix in (".input", ".rows", ".part")]
    assert SECRET not in done.err + again.err


def test_parquet_and_lines_there(cortex: Any, store: Any) -> None:
    import pyarrow.parquet as pq

    table(Path("t.csv"), 3)
    assert cortex("batch", "t.csv", *ASK, "-o", "s3://tickets/out.parquet", *SIM).code == 0
    assert cortex("batch", "t.csv", *ASK, "-o", "s3://tickets/out.jsonl", *SIM).code == 0
    assert sorted(store.ls("tickets", detail=False)) == ["tickets/out.jsonl", "tickets/out.parquet"]
    assert len(store.cat_file("tickets/out.jsonl").splitlines()) == 3
    with store.open("tickets/out.parquet") as file:
        assert sorted(pq.read_table(file)["ticket_id"].to_pylist()) == ["t0", "t1", "t2"]
    taken = cortex("batch", "t.csv", *ASK, "-o", "s3://tickets/out.parquet", "--job", "other", *SIM)
    taken.refused("s3://tickets/out.parquet exists", "--overwrite")


def test_what_is_not_there(cortex: Any, store: Any) -> None:
    cortex("batch", "s3://tickets/none.csv", *ASK, "-o", "o.csv", *SIM).refused("s3://tickets/none.csv", "no such object")
    table(Path("t.csv"), 3)
    cortex("batch", "t.csv", *ASK, "-o", "s3://nowhere/o.csv", *SIM).refused("s3://nowhere/o.csv", "no such bucket")
    assert not list(Path(".cortex").rglob("*.sqlite"))


def test_a_store_that_refuses(cortex: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    line = cortex("batch", "s3://tickets/t.csv", *ASK, "-o", "o.csv", *SIM).refused("s3://tickets/t.csv cannot be read")
    assert SECRET not in line


def test_a_driver_that_is_not_installed(cortex: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def missing(*args: Any, **options: Any) -> None:
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    cortex("batch", "gs://b/t.csv", *ASK, "-o", "o.csv", *SIM).refused("gs://b/t.csv", "cortex-bounded-calls[gcs]")
    table(Path("t.csv"), 3)
    cortex("batch", "t.csv", *ASK, "-o", "az://b/o.csv", *SIM).refused("az://b/o.csv", "cortex-bounded-calls[azure]")


@pytest.mark.parametrize(
    "said",
    [
        f"SignatureDoesNotMatch: AWS_SECRET_ACCESS_KEY={SECRET} is wrong", f"https://x/y?sig={SECRET}&se=2026 refused",
        f"config {{'account_key': '{SECRET}'}}", f'{{"client_secret":"{SECRET}","x":1}}',
        "nothing names it: AKIA-by-itself-0123456789",
    ],
)  # fmt: skip
def test_a_driver_that_tells_its_secret(cortex: Any, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    import fsspec

    def refusing(*args: Any, **options: Any) -> None:
        raise PermissionError(f"it said\n{said}" + " and on" * 900)

    monkeypatch.setenv("AWS_SESSION_TOKEN", "AKIA-by-itself-0123456789")
    monkeypatch.setattr(fsspec.core, "url_to_fs", refusing)
    table(Path("t.csv"), 3)
    for command in (("s3://b/t.csv", "o.csv"), ("t.csv", "s3://b/o.csv")):
        line = cortex("batch", command[0], *ASK, "-o", command[1], *SIM).refused("s3://b/", "see to the credentials")
        assert SECRET not in line
        assert "AKIA-by-itself" not in line
        assert len(line) < 500


def test_a_name_that_nothing_reads(cortex: Any) -> None:
    cortex("batch", "nope://b/t.csv", *ASK, "-o", "o.csv", *SIM).refused("nope://b/t.csv", "s3://")


def test_a_store_in_memory(cortex: Any) -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    table(Path("t.csv"), 3)
    files.put_file("t.csv", "/in/t.csv")
    assert cortex("batch", "memory://in/t.csv", *ASK, "-o", "memory://in/o.jsonl", *SIM).code == 0
    assert ids(files.cat_file("/in/o.jsonl").decode()) == ["t0", "t1", "t2"]
