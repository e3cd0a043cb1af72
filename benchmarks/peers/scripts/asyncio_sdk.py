"""asyncio with the SDK in one process: the usual first program. Variant: `uvloop`."""

import asyncio

import common


async def main() -> None:
    """Make all calls, a fixed number at once."""
    given = common.given()
    client = common.sdk_client(given.url)
    ask = common.sdk(client) if given.work == "http" else common.at_once
    began = common.Began()
    answers = await common.in_parallel(ask, range(given.calls), given.at_once)
    common.told(answers, given.calls, began)
    await client.close()


(common.on_uvloop if common.given().variant == "uvloop" else asyncio.run)(main())
