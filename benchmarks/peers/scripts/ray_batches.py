"""Ray Data: `map_batches` with an asynchronous actor, one a core, whose batches overlap.

https://docs.ray.io/en/latest/data/transforming-data.html (a class with an asynchronous `__call__` that yields;
`concurrency` actors), each of which may have several batches in hand (`max_concurrency`).
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import common
import numpy as np
import ray

BATCH_ROWS = 50


class Asker:
    """Actor that asks the provider for all rows of a batch together."""

    def __init__(self, work: str, url: str) -> None:
        self._ask = common.sdk(common.sdk_client(url)) if work == "http" else common.at_once

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Answer one batch."""
        answers = await asyncio.gather(*(self._ask(int(number)) for number in batch["id"]))
        yield {"id": batch["id"], "answer": np.array(answers), "first_s": np.full(len(answers), common.instant.first_s)}


def main() -> None:
    """Run all rows; the last batches do not wait for each other."""
    given = common.given()
    ray.data.DataContext.get_current().enable_progress_bars = False
    batches = max(1, given.at_once // given.cpus // BATCH_ROWS)
    rows = ray.data.range(given.calls, override_num_blocks=max(2 * given.cpus, given.calls // 500)).map_batches(
        Asker, fn_constructor_args=(given.work, given.url), batch_size=BATCH_ROWS, concurrency=given.cpus,
        num_cpus=0.5, max_concurrency=max(2, batches),
    )  # fmt: skip
    answers, first_s = [], time.perf_counter()
    for row in rows.iter_rows():
        answers.append((int(row["id"]), str(row["answer"])))
        first_s = min(first_s, float(row["first_s"]))  # one clock for the whole machine
    common.told(answers, given.calls, common.Began(first_s))


ray.init(num_cpus=common.given().cpus, include_dashboard=False, log_to_driver=False)
main()
