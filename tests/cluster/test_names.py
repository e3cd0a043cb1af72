"""One Ray that outlives its jobs, two state folders, one name: both jobs do their work."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster_processes import PATIENCE_S, Commands, Provider, write_rows


@pytest.mark.long
async def test_a_job_of_another_state_folder_may_have_the_name_of_one_that_was_there(
    runtime: Any, address: str, folder: Path
) -> None:  # fmt: skip
    provider = Provider(latency_ms=10)
    try:
        for place in ("a", "b", "c"):
            (folder / place).mkdir()
            write_rows(folder / place / "in.jsonl", 30, place)
            commands = Commands(folder / place, provider.url, address)
            driver = commands.start("batch", "in.jsonl", "-o", "out.jsonl", "--job", "named", "--json")
            try:
                text, _ = await asyncio.to_thread(driver.communicate, timeout=PATIENCE_S)
            finally:
                driver.kill()
            found = json.loads(next(line for line in text.splitlines()[::-1] if line.startswith('{"job"')))
            assert (driver.returncode, found["outcome"], found["paid_calls"]) == (0, "complete", 30), text
    finally:
        provider.close()
