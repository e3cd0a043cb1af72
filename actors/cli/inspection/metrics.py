"""``metrics``: ends of the jobs of a state folder, for Prometheus."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from functools import partial

from actors.cli.jobs.settings import named_folder
from actors.cli.options.errors import COMPLETE, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.common.units import duration_s
from actors.journal.journal import StateFolder
from actors.observability.folder_metrics import FolderMetrics


def metrics(address: str, keep: str, create: bool, options: Options) -> int:
    """Run ``cortex metrics`` and return the exit code. With an address: serve the page until a signal ends it.
    ``create``: make the state folder first, if there is none."""
    folder = named_folder(options)
    try:
        kept_s = duration_s(keep)
    except ValueError as error:
        raise CommandError(f"--keep: {error}") from None
    if not address:
        from actors.observability.metrics.prometheus_text import page

        found = FolderMetrics(folder, kept_s, create=create)
        (samples,) = asyncio.run(found.ask())
        print(page(samples, {}, "")[0].decode(), end="", flush=True)
        if found.problem:
            raise CommandError(found.problem)
        return COMPLETE
    warn = partial(print_error, level=logging.WARNING)
    asyncio.run(_serve(address, folder, FolderMetrics(folder, kept_s, tell=warn, create=create)))
    return COMPLETE


async def _serve(address: str, folder: StateFolder, found: FolderMetrics) -> None:
    from actors.observability.base.settings import TelemetrySettings
    from actors.observability.metrics.scrape_server import ScrapeServer

    settings = TelemetrySettings.from_environ(os.environ)
    server = ScrapeServer(address, {**dict(settings.resource), "service.name": settings.service})
    where = await server.open()
    server.serve(found.ask, found.health)
    ends, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ends.set)
    print_error(f"metrics of {folder.address}: {where}")
    await found.ask()  # what is wrong is logged now, not at the first scrape
    try:
        await ends.wait()
    finally:
        await server.close()
