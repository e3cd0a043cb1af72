"""``top``: present activity of jobs, routes, branches, workers and nodes in one view."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys

import msgspec

from actors.cli.jobs.settings import named_folder, shared_cluster
from actors.cli.options.errors import COMPLETE
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.top.sources import FolderSource, TopSnapshot, brief
from actors.top.text_output import lines
from actors.top.view import screen

NO_TERMINAL = "top needs a terminal: `cortex top --once` prints one screen as text, --json one for programs"


def top(once: bool, options: Options) -> int:
    """Run ``cortex top`` and return the exit code."""
    source = FolderSource(named_folder(options))
    cluster = shared_cluster(options)
    once = once or options.as_json
    if not once and not _on_terminal():
        raise CommandError(NO_TERMINAL)
    if cluster:
        return asyncio.run(_of_cluster(source, cluster, once, options))
    if once:
        return _printed(source.look(float("inf")), cluster, options)
    from actors.top.terminal import ThreadedSource, TopApp

    TopApp(ThreadedSource(source)).run()
    return COMPLETE


async def _of_cluster(folder: FolderSource, cluster: str, once: bool, options: Options) -> int:
    from actors.cli.options.api_keys import taken_environ
    from actors.runtime.ray_runtime import start_runtime
    from actors.top.cluster_source import ClusterSource

    runtime = await start_runtime(cluster, taken_environ())
    try:
        source = ClusterSource(runtime, cluster, folder)
        if once:
            return _printed(await source.look(float("inf")), cluster, options)
        from actors.top.terminal import TopApp

        await TopApp(source, cluster).run_async()
        return COMPLETE
    finally:
        await runtime.close()


def _printed(seen: TopSnapshot, cluster: str, options: Options) -> int:
    if options.as_json:
        print(msgspec.json.encode(brief(seen)).decode())
        return COMPLETE
    print("\n".join(lines(screen(seen, cluster), shutil.get_terminal_size().columns, _ascii_only())))
    return COMPLETE


def _on_terminal() -> bool:
    """Return True on a terminal. Keys come from standard input; Textual draws on standard error."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    known = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return known and all(stream is not None and stream.isatty() for stream in streams)


def _ascii_only() -> bool:
    """Return True if the output cannot encode block characters."""
    try:
        "▁█…".encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return True
    return False
