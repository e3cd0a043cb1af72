"""dask.distributed, one task a call: coroutine functions, a worker process a core.

https://distributed.dask.org/en/stable/asynchronous.html and .../api.html#distributed.Client.map: a coroutine function
is awaited on the worker's event loop, as many at once as the worker has threads; `pure=False` leaves out the hashing
of arguments.
"""

import asyncio
from typing import Any

import common
from dask.distributed import Client, LocalCluster

ASK: dict[str, common.Ask] = {"null": common.at_once}


async def ready(url: str) -> None:
    """Create a worker's client before the first task."""
    import dask_tasks  # the module under the name its tasks use

    dask_tasks.ASK["http"] = common.sdk(common.sdk_client(url))


async def one(number: int, work: str) -> str:
    """Make one call, with the client kept by this worker."""
    import dask_tasks

    return await dask_tasks.ASK[work](number)


async def main() -> None:
    """Submit all tasks and gather all answers."""
    given = common.given()
    threads = max(1, given.at_once // given.cpus)
    kept: dict[str, Any] = {"processes": True, "n_workers": given.cpus, "threads_per_worker": threads}
    async with (
        LocalCluster(asynchronous=True, dashboard_address=None, local_directory=str(given.state), **kept) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        await client.wait_for_workers(given.cpus)
        await client.upload_file(common.__file__)
        await client.upload_file(__file__)
        await client.run(ready, given.url)
        began = common.Began()
        futures = client.map(one, range(given.calls), work=given.work, pure=False)
        answers = await client.gather(futures)
        common.told(enumerate(answers), given.calls, began)


if __name__ == "__main__":
    asyncio.run(main())
