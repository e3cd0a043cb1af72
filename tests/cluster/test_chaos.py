"""The short form of ``make chaos``: one round of kills, on the Ray of all cluster tests and two more nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.killer import KINDS
from tests.chaos.ray_cluster import ground
from tests.chaos.trial import Setup, trial
from tests.cluster.cluster_processes import Head

SHORT = Setup(
    rows=300, every_s=1.5, latency_ms=1_000.0, hang_s=5.0, permits=16, kills_max=len(KINDS), gauged=False,
    timeout_s=240.0,
)  # fmt: skip
"""The rows must outlast a round of kills, on any machine."""


@pytest.mark.release  # `.ci/run` runs `make chaos`
async def test_every_row_is_there_once_whoever_dies(
    head: Head, runtime: Any, folder: Path, tell: Callable[[str], None]
) -> None:
    with ground(head) as nodes, trial(nodes, runtime, folder, SHORT, lambda _: None) as one:
        seen = await one.run()
    tell(seen.told())
    assert seen.complaints() == []
    assert set(seen.kills) == set(KINDS)
