"""A job over message batches, from its rows to its results, against a simulated provider."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.edge.batched import Job, in_process, over_http


@pytest.mark.parametrize("road", ["in process", "http"])
async def test_every_row_comes_back_once(tmp_path: Path, road: str) -> None:
    if road == "in process":
        job = await Job(tmp_path, in_process()).to_end()
    else:
        async with over_http() as (server, arming):
            job = await Job(tmp_path, arming).to_end()
            assert server.provider.tally.batches == 1
    assert Counter(job.sink.keys()) == Counter(f"r{i}" for i in range(40))
    assert job.facts["outcome"] == "complete"
    assert job.facts["rows_succeeded"] == job.facts["attempts"] == job.facts["paid_calls"] == 40
