"""A database over TLS: certificates are looked at as the usual variables have it, and one that is wrong is one line."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import trustme

from actors.doctor.checks import DoctorOptions
from actors.doctor.state_folder import state_folder as looked_at
from actors.journal.journal import StateFolder, StoreError
from tests.support.patience import PATIENCE_S
from tests.support.postgres_server import Server

HOST = "localhost"


class Secured:
    """A server that serves TLS, and what its users are given."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        authority, other = trustme.CA(), trustme.CA()
        self.root, self.other_root = str(folder / "root.pem"), str(folder / "other.pem")
        authority.cert_pem.write_to_path(self.root)
        other.cert_pem.write_to_path(self.other_root)
        own = authority.issue_cert(HOST)
        mine = authority.issue_cert("certified@example.org", common_name="certified")
        self.cert, self.key = str(folder / "user.crt"), str(folder / "user.key")
        mine.cert_chain_pems[0].write_to_path(self.cert)
        mine.private_key_pem.write_to_path(self.key)
        os.chmod(self.key, 0o600)
        for name, pem in {"server.crt": own.cert_chain_pems[0], "server.key": own.private_key_pem}.items():
            pem.write_to_path(str(server.data / name))
        shutil.copy(self.root, server.data / "root.crt")
        for name in ("server.crt", "server.key", "root.crt"):
            os.chmod(server.data / name, 0o600)
            if os.getuid() == 0:
                shutil.chown(server.data / name, "nobody", "nogroup")

    def address(self, database: str, host: str = HOST, user: str = "owner") -> str:
        return database.replace("127.0.0.1", host).replace("owner@", f"{user}@")


@pytest.fixture(scope="module")
def secured(postgres: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    built = postgres.does("SELECT setting FROM pg_config() WHERE name = 'CONFIGURE'")[0][0]
    if "ssl" not in built:
        pytest.skip("this PostgreSQL server was built without TLS: Debian's postgresql has it")
    made = Secured(postgres, tmp_path_factory.mktemp("tls"))
    hba = postgres.data / "pg_hba.conf"
    before = hba.read_text()
    hba.write_text("hostssl all certified all cert\nhostnossl all certified all reject\n" + before)
    _have(postgres, "on", "ALTER SYSTEM SET ssl = on", "ALTER SYSTEM SET ssl_ca_file = 'root.crt'")
    postgres.does("CREATE ROLE certified LOGIN SUPERUSER")
    yield made
    hba.write_text(before)
    _have(postgres, "off", "ALTER SYSTEM RESET ssl", "ALTER SYSTEM RESET ssl_ca_file")


def _have(server: Server, tls: str, *statements: str) -> None:
    server.does(*statements, "SELECT pg_reload_conf()")
    end_s = time.monotonic() + PATIENCE_S
    while server.does("SHOW ssl") != [(tls,)]:
        assert time.monotonic() < end_s, server.log()
        time.sleep(0.02)


@pytest.fixture
def variables(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    monkeypatch.setenv("PGSSLROOTCERT", secured.root)
    return monkeypatch


def test_a_server_whose_certificate_fits_is_used_and_all_of_it_is_encrypted(
    secured: Secured, database: str, variables: pytest.MonkeyPatch
) -> None:
    variables.setenv("PGAPPNAME", "of this test")  # others use the server, too
    address = secured.address(database)
    folder = StateFolder(address).prepare()
    source = folder.journal("j", create=True)
    source.take_epoch(b"{}")
    with folder.hold("j"):
        assert source.append([b"a turn"]) == 1
        asked = (
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
            "WHERE application_name = 'of this test' AND pid <> pg_backend_pid()"
        )
        assert secured.server.does(asked, at=secured.server.address(more="?sslmode=disable")) == [(True,)]
    source.close()
    (found,) = looked_at(DoctorOptions(state=address, environ=os.environ))
    assert ", TLS, a commit takes" in found.message


@pytest.mark.parametrize(
    ("host", "root", "words"),
    [
        ("127.0.0.1", "root", ('for "localhost" does not match host name "127.0.0.1"', "the name in the address")),
        (HOST, "other_root", ("certificate verify failed", "PGSSLROOTCERT names the certificate of the authority")),
        (HOST, "none", ("root certificate file", "does not exist; look at PGSSLROOTCERT")),
    ],
)
def test_a_certificate_that_does_not_fit_is_one_line(
    secured: Secured, database: str, variables: pytest.MonkeyPatch, host: str, root: str, words: tuple[str, ...]
) -> None:
    variables.setenv("PGSSLROOTCERT", str(getattr(secured, root, "/nowhere/root.crt")))
    address = secured.address(database, host)
    for use in (lambda: StateFolder(address).prepare(), lambda: StateFolder(address).jobs()):
        with pytest.raises(StoreError) as caught:
            use()
        text = str(caught.value)
        assert text.startswith(f"cannot use the database {address}: ") and "\n" not in text
        for word in words:
            assert word in text


def test_the_address_may_say_it_too(secured: Secured, database: str) -> None:
    """As k8s/ has it: the mode stands in the address."""
    text = f"&sslmode=verify-full&sslrootcert={secured.root}"
    assert StateFolder(secured.address(database) + text).prepare().jobs() == []
    with pytest.raises(StoreError, match="does not match host name"):
        StateFolder(secured.address(database, "127.0.0.1") + text).prepare()


def test_a_users_certificate_stands_for_a_password(
    secured: Secured, database: str, variables: pytest.MonkeyPatch
) -> None:
    address = secured.address(database, user="certified")
    with pytest.raises(StoreError, match="requires a valid client certificate"):
        StateFolder(address).prepare()
    variables.setenv("PGSSLCERT", secured.cert)
    variables.setenv("PGSSLKEY", secured.key)
    StateFolder(address).prepare().put_note("live", "j", b"1")
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("certified",)
