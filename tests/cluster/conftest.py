"""One Ray for all cluster tests, and one connection of this process to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster_processes import Head, ray_head


@pytest.fixture(scope="session")
def head() -> Iterator[Head]:
    """A Ray that was started apart from every driver."""
    with ray_head() as found:
        yield found


@pytest.fixture(scope="session")
def address(head: Head) -> str:
    """Where it is."""
    return head.address


@pytest.fixture(scope="session")
def runtime(address: str) -> Iterator[Any]:
    """This process's view of that Ray."""
    from actors.runtime.ray_runtime import start_runtime

    found = asyncio.run(start_runtime(address, {}))
    yield found
    asyncio.run(found.close())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a job's input, output and state stand."""
    return tmp_path
