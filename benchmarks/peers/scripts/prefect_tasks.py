"""Prefect: a flow whose calls are tasks, a fixed number at once; results are kept on disk under their inputs.

https://docs.prefect.io/v3/how-to-guides/workflows/run-work-concurrently (asynchronous tasks awaited together),
https://docs.prefect.io/v3/concepts/caching (`INPUTS` and `persist_result`: a restarted run reuses kept results). The
server is Prefect's temporary one, on SQLite.
"""

import asyncio
import os

import common

GIVEN = common.given()
os.environ |= {
    "PREFECT_HOME": str(GIVEN.state / "prefect"), "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false", "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120", "PREFECT_CLI_PROMPT": "false",
}  # fmt: skip

from prefect import flow, task  # noqa: E402 the settings above are read on import
from prefect.cache_policies import INPUTS  # noqa: E402

ASK: list[common.Ask] = []


@task(cache_policy=INPUTS, persist_result=True)
async def one(number: int) -> str:
    """Make one call."""
    return await ASK[0](number)


@flow
async def everything(calls: int, width: int) -> list[tuple[int, str]]:
    """Make all calls."""
    return await common.in_parallel(one, range(calls), width)


async def main() -> None:
    """Run the flow once."""
    client = common.sdk_client(GIVEN.url)
    ASK.append(common.sdk(client) if GIVEN.work == "http" else common.at_once)
    began = common.Began()
    answers = await everything(GIVEN.calls, GIVEN.at_once)
    common.told(answers, GIVEN.calls, began, starts=True)
    await client.close()


asyncio.run(main())
