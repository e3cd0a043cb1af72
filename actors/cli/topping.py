"""``top``: what happens now, in one view."""

from __future__ import annotations

import os
import shutil
import sys

import msgspec

from actors.cli.options import Options
from actors.cli.problems import COMPLETE, CommandError
from actors.cli.settings import named_folder, shared_cluster
from actors.top.plain import lines
from actors.top.sources import FolderSource, brief
from actors.top.view import screen


def top(once: bool, options: Options) -> int:
    """``cortex top``; the exit code."""
    folder = named_folder(options)
    cluster = shared_cluster(options)
    if once or options.as_json:
        seen = FolderSource(folder).look(float("inf"))
        if options.as_json:
            print(msgspec.json.encode(brief(seen)).decode())
            return COMPLETE
        width = shutil.get_terminal_size().columns
        print("\n".join(lines(screen(seen, cluster), width, _plain())))
        return COMPLETE
    if not (sys.stdout.isatty() and sys.stdin.isatty()) or os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        raise CommandError("top needs a terminal: `cortex top --once` prints one screen, --json one for programs")
    from actors.top.terminal import Threaded, show

    show(Threaded(FolderSource(folder)), cluster)
    return COMPLETE


def _plain() -> bool:
    """Whether the output cannot carry block characters."""
    try:
        "▁█…".encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return True
    return False
