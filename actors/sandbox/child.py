"""Child process of the sandbox: reads pieces from standard input, drives the interpreter, writes outcomes.

Output of the code never goes to the process's own standard output, so it cannot be taken for an outcome.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import msgspec
import pydantic_monty as monty

from actors.sandbox.interpreter import InterpreterSession
from cortex.state.sandbox import PieceOutcome, SandboxBounds, SandboxPiece, SandboxRefusal

GRACE_S = 1.0
"""Seconds between the end of a piece's time and the kill of its interpreter."""
AGAIN = 3.0
"""Factor on the time of a piece that is run again: its first run may have been on an idle machine."""
HEADROOM_MB = 1_000
"""Memory of this process in MB, beside the memory of the code."""
LENGTH_BYTES = 8
READY = b"ready"
"""First message of the child."""
_CLOCK = datetime(2000, 1, 1)  # noqa: DTZ001 - clock of the sandbox, which stands still
_FOR_GOOD = frozenset(
    {SandboxRefusal.TIME, SandboxRefusal.MEMORY, SandboxRefusal.CRASHED, SandboxRefusal.DIFFERS, SandboxRefusal.CALLS}
)
"""Refusals of a repeated earlier piece that hold for the last piece too."""

Work = tuple[list[SandboxPiece], dict[str, Any], SandboxBounds, bool]


def came_to(
    pool: monty.Monty, pieces: Sequence[SandboxPiece], names: dict[str, Any], bounds: SandboxBounds, recurses: bool
) -> PieceOutcome:
    """Run the pieces in order and return the outcome of the last one."""
    again = len(pieces) > 1 or bool(pieces[-1].said)
    try:
        with pool.checkout(**_settings(bounds, again)) as session:
            run = InterpreterSession(session, bounds, recurses)
            for earlier in pieces[:-1]:
                outcome = run.feed(earlier, names)
                names = {}
                if outcome.refusal in _FOR_GOOD:
                    return outcome
            if not again or pieces[-1].said:
                return run.feed(pieces[-1], names, last=True)
            return _first(run, session, pieces[-1], names, bounds.time_s)
    except monty.MontyError as error:
        return PieceOutcome(refusal=SandboxRefusal.CRASHED, why=f"its interpreter ended: {error}"[:200])
    except MemoryError:
        return PieceOutcome(
            refusal=SandboxRefusal.MEMORY, why="what it hands out is larger than the memory it may have"
        )


def _first(
    run: InterpreterSession, session: monty.MontySession, piece: SandboxPiece, names: dict[str, Any], time_s: float
) -> PieceOutcome:
    """Run a new piece after repeated ones; its own time limit is shorter than the session's."""
    interpreter, late = session.worker_pid, threading.Event()

    def kill() -> None:
        late.set()
        if interpreter is not None:
            with contextlib.suppress(OSError):
                os.kill(interpreter, signal.SIGTERM)

    watch = threading.Timer(time_s, kill)
    watch.daemon = True
    watch.start()
    try:
        outcome = run.feed(piece, names, last=True)
    finally:
        watch.cancel()
    if outcome.refusal == SandboxRefusal.CRASHED and late.is_set():
        return msgspec.structs.replace(
            outcome, refusal=SandboxRefusal.TIME, why=f"it computed for more than {time_s:g} s"
        )
    return outcome


def _settings(bounds: SandboxBounds, again: bool) -> dict[str, Any]:
    limits: dict[str, Any] = {
        "max_feed_duration_secs": bounds.time_s * (AGAIN if again else 1.0),
        "max_memory": bounds.memory_mb * 1_000_000,
        "max_recursion_depth": bounds.recursion,
        # a call, the look-up of its name, and its answer; and look-ups of undefined names
        "max_suspensions": 3 * bounds.calls + 200,
    }
    policy = {"datetime": _CLOCK, "sleep": "zero", "random_start": {"seed": 0}}
    return {"script_name": "program.py", "limits": limits, "os_policy": policy}


def _binary() -> Path | None:
    """Return the interpreter's binary, also if packages are installed outside of this Python's prefix."""
    name = "monty.exe" if sys.platform == "win32" else "monty"
    try:
        files = importlib.metadata.files("pydantic-monty-runtime") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())) for file in files if file.name == name)
    return next((place.resolve() for place in found if place.is_file()), None)


def _bounded(memory_mb: int) -> None:
    """Limit the memory of this process and the interpreter, on systems that can (RLIMIT_AS)."""
    try:
        import resource
    except ImportError:
        return
    size = (memory_mb + HEADROOM_MB) * 1_000_000
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    size = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def read(stream: IO[bytes], bytes_max: int | None = None) -> bytes:
    """Return the next message; empty at the end. Raises ``EOFError`` for a truncated message, ``ValueError`` for a too
    large one."""
    head = stream.read(LENGTH_BYTES)
    if not head:
        return b""
    length = int.from_bytes(head, "big")
    if bytes_max is not None and length > bytes_max:
        raise ValueError(f"a message of {length:,} bytes, {bytes_max:,} at most")
    body = stream.read(length)
    if len(head) < LENGTH_BYTES or len(body) < length:
        raise EOFError("half of a message")
    return body


def write(stream: IO[bytes], body: bytes) -> None:
    """Write a message, after its length."""
    stream.write(len(body).to_bytes(LENGTH_BYTES, "big"))
    stream.write(body)
    stream.flush()


def main() -> None:
    """Run pieces until the worker closes the pipe or ends."""
    given, taken = sys.stdin.buffer, sys.stdout.buffer
    _bounded(int(sys.argv[1]))
    with monty.Monty(
        binary_path=_binary(), min_processes=1, max_processes=1, feed_duration_limit_grace=GRACE_S
    ) as pool:
        write(taken, READY)
        while body := read(given):
            work = msgspec.msgpack.decode(body, type=Work)
            write(taken, msgspec.msgpack.encode(came_to(pool, *work)))


if __name__ == "__main__":
    main()
