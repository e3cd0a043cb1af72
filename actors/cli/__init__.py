"""Command line. ``main`` is the console script; ``python -m actors.cli`` runs the same function."""

from __future__ import annotations

import contextlib
import io
import sys


def main() -> None:
    """Run one command and end the interpreter with its exit code (``actors.cli.options.exit_codes``)."""
    try:
        from actors.common.shadowing import hidden_line

        if text := hidden_line():  # before anything is imported from a package that may be hidden
            with contextlib.suppress(OSError, ValueError):
                print(f"cortex: {text}", file=sys.stderr or io.StringIO())
            sys.exit(2)
        from actors.common.gc_tuning import never_at_the_end, seldom
        from actors.common.tolerant_stream import guard_standard_streams

        guard_standard_streams()
        seldom()
        never_at_the_end()
        from actors.cli.main import enter
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(enter(sys.argv[1:]))
