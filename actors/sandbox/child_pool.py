"""Children of a worker: started at first use, reused, killed when silent too long."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from actors.sandbox.child import AGAIN, GRACE_S, READY, read, write
from cortex.state.sandbox import PieceOutcome, SandboxBounds, SandboxPiece, SandboxRefusal

CHILDREN_MAX = 4
"""Most pieces that run at once; further pieces wait."""
START_S = 60.0
SILENT_S = 3.0
"""Seconds beyond the time of the pieces, for the transfer and decoding of messages."""
_KEPT_ENVIRONMENT = ("LD_LIBRARY_PATH", "MONTY_BIN", "PATH", "SYSTEMROOT", "TMPDIR", "VIRTUAL_ENV")


class _Child:
    """Child process for pieces with one memory limit."""

    def __init__(self, memory_mb: int) -> None:
        self.memory_mb = memory_mb
        self._begun = False
        environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(each) for each in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "actors.sandbox.child", str(memory_mb)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd=os.sep, start_new_session=True,
        )  # fmt: skip

    def run(self, body: bytes, within_s: float) -> PieceOutcome:
        """Run a message within a time. The child may be ``dead`` afterwards."""
        late = False
        if not self._begun:  # the start does not count as computing time
            data, late = self._exchange(b"", START_S, len(READY))
            self._begun = data == READY
        if self._begun:
            data, late = self._exchange(body, within_s, 4 * self.memory_mb * 1_000_000)
            with contextlib.suppress(ValueError):
                if data:
                    return msgspec.msgpack.decode(data, type=PieceOutcome)
        self.end()
        if late:
            return PieceOutcome(refusal=SandboxRefusal.TIME, why="it was stopped: it was silent for too long")
        return PieceOutcome(refusal=SandboxRefusal.CRASHED, why="its process died, of too much memory perhaps")

    def _exchange(self, body: bytes, within_s: float, bytes_max: int) -> tuple[bytes, bool]:
        """Send a message, if any, and return the reply, and whether the child was killed for its silence."""
        late = threading.Event()

        def kill() -> None:
            late.set()
            self._process.kill()

        watch = threading.Timer(within_s, kill)
        watch.daemon = True
        watch.start()
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            if body:
                write(self._process.stdin, body)
            return read(self._process.stdout, bytes_max), late.is_set()
        except (OSError, EOFError, ValueError):
            return b"", late.is_set()
        finally:
            watch.cancel()

    @property
    def dead(self) -> bool:
        """True if the child can no longer be used."""
        return self._process.poll() is not None

    def end(self) -> None:
        """Kill the child; its interpreter ends with it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Sandbox:
    """Runner of pieces in child processes. Thread-safe."""

    runs_max = CHILDREN_MAX
    """Runs that a worker begins at once."""

    def __init__(self) -> None:
        self._idle: list[_Child] = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(CHILDREN_MAX)

    def run(self, pieces: list[Any], names: dict[str, Any], bounds: dict[str, Any], recurses: bool = False) -> Any:
        """Run pieces; implements ``cortex.state.sandbox.sandbox``, with arguments as plain data."""
        given = msgspec.convert(pieces, list[SandboxPiece])
        return self.outcome(given, names, msgspec.convert(bounds, SandboxBounds), recurses)

    def outcome(
        self,
        pieces: Sequence[SandboxPiece],
        names: dict[str, Any],
        bounds: SandboxBounds | None = None,
        recurses: bool = False,
    ) -> PieceOutcome:
        """Run the pieces in order and return the outcome of the last one."""
        bounds = bounds or SandboxBounds()
        for piece in pieces:
            if len(piece.code) > bounds.code_chars:
                why = f"{len(piece.code):,} characters of code, {bounds.code_chars:,} at most"
                return PieceOutcome(refusal=SandboxRefusal.SYNTAX, why=why)
        body = msgspec.msgpack.encode((list(pieces), names, bounds, recurses))
        with self._places:
            child = self._taken(bounds.memory_mb)
            try:
                again = len(pieces) if pieces and pieces[-1].said else len(pieces) - 1
                times = (len(pieces) - again) + again * AGAIN
                return child.run(body, times * bounds.time_s + len(pieces) * GRACE_S + SILENT_S)
            finally:
                self._given_back(child)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the children. A later run starts new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()

    def _taken(self, memory_mb: int) -> _Child:
        with self._lock:
            fits = next((child for child in self._idle if child.memory_mb == memory_mb and not child.dead), None)
            if fits is not None:
                self._idle.remove(fits)
                return fits
        return _Child(memory_mb)

    def _given_back(self, child: _Child) -> None:
        with self._lock:
            if not child.dead:
                self._idle.append(child)
            over = [self._idle.pop(0)] if len(self._idle) > CHILDREN_MAX else []
        for each in over:
            each.end()
