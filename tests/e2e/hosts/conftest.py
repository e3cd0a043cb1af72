"""One set of hosts for all tests here: to start a Ray over three of them takes ten seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.hosts.ground import ROCKSDB, Ground, ground


@pytest.fixture(scope="session")
def hosts() -> Iterator[Ground]:
    """Hosts ``head``, ``a`` and ``b`` with a Ray over them that asks for a token and keeps on disk what its head knows,
    and a provider. Each test leaves them as it found them."""
    with ground() as found:
        found.answers(latency_ms=150.0)
        found.rays(**ROCKSDB)
        yield found
