"""Ray, one actor call a call: asynchronous actors, one a core, asked from an event loop.

https://docs.ray.io/en/latest/ray-core/actors/async_api.html: `max_concurrency` calls of an actor at once, and object
references that are awaited. A driver that submits all calls first and gets them as one list was tried too.
"""

import asyncio

import common
import ray


@ray.remote(num_cpus=0)
class Asker:
    """Actor that asks the provider."""

    def __init__(self, work: str, url: str) -> None:
        self._ask = common.sdk(common.sdk_client(url)) if work == "http" else common.at_once

    async def ready(self) -> None:
        """Return when the actor has started."""

    async def ask(self, number: int) -> str:
        """Make one call."""
        return await self._ask(number)


async def main() -> None:
    """Call all actors in turns, a fixed number at once."""
    given = common.given()
    width = max(1, given.at_once // given.cpus)
    actors = [Asker.options(max_concurrency=width).remote(given.work, given.url) for _ in range(given.cpus)]
    await asyncio.gather(*(actor.ready.remote() for actor in actors))

    async def ask(number: int) -> str:
        return await actors[number % len(actors)].ask.remote(number)

    began = common.Began()
    if given.variant == "list":
        refs = [actors[number % len(actors)].ask.remote(number) for number in range(given.calls)]
        answers = list(enumerate(await asyncio.to_thread(ray.get, refs)))
    else:
        answers = await common.in_parallel(ask, range(given.calls), given.at_once)
    common.told(answers, given.calls, began)


ray.init(num_cpus=common.given().cpus, include_dashboard=False, log_to_driver=False)
asyncio.run(main())
