"""Unix sockets between actors of one node: paths, check of the peer's user, and framing of messages.

Ray starts actors, finds them by name, watches and ends them, and carries messages between nodes. Within a node a
message by Ray takes about a millisecond of CPU on either side; by sockets a chain of calls is three to four times as
fast (docs/decisions/0005).

Messages are unpickled, so both ends check that the other process belongs to the same user, who could write into the
process's memory anyway. For that reason there are no such sockets on a system that, unlike Linux, does not tell the
peer's user. The folder is also private to this user, but its parent folder may be writable by others.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import stat
import struct
import sys
from typing import Any

from cortex import __version__

_HEAD = struct.Struct(">IQ")
"""Header of each message: its size in bytes, and the number of the request that it is, or answers."""
SO_PEERCRED = getattr(socket, "SO_PEERCRED", 0)
_CREDENTIALS = struct.Struct("iII")
"""Process, user and group of the peer: ``struct ucred`` of unix(7)."""


class SocketAddresses:
    """Sockets of one node's actors, in the folder of Ray's session; ``node`` is Ray's name of the node."""

    def __init__(self, session: str, node: str) -> None:
        self._folder = os.path.join(session, "cortex")
        self._node = node

    def path(self, name: str) -> str:
        """Return the path of an actor's socket. Another node of the same machine and another release have other paths.
        """
        known = "\n".join((self._node, __version__, name)).encode()
        return os.path.join(self._folder, hashlib.blake2b(known, digest_size=6).hexdigest())

    def are_safe(self) -> bool:
        """Return whether the folder exists, and only this user can have put files into it."""
        try:
            found = os.lstat(self._folder)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077

    def bound(self, path: str) -> socket.socket:
        """Return a new socket bound to a path in the folder. Makes the folder if needed. Raises ``OSError``."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        if not self.are_safe():
            raise PermissionError(f"{self._folder} belongs to another user, or others can access it")
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.bind(path)
        except OSError:
            made.close()
            raise
        return made


def sockets_of(node: Any, name: str) -> SocketAddresses | None:
    """Return the socket addresses of this process's node, from Ray's object of the node; None if there can be no
    sockets.
    """
    return SocketAddresses(node.get_session_dir_path(), name) if node is not None and sys.platform == "linux" else None


def is_ours(transport: asyncio.Transport) -> bool:
    """Return whether the peer is a process of this user."""
    reported = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(reported)[1] == os.geteuid())


_open: set[int] = set()
"""File descriptors of this project's sockets in this process."""


def keep_from_children(descriptor: int) -> None:
    """Register a socket to be closed in forked children, such as a tool's or a program's.

    The peer would not notice the death of this process while a child has the socket open.
    """
    _open.add(descriptor)


def forget(descriptor: int) -> None:
    """Unregister a closed socket: its number may be reused for another file."""
    _open.discard(descriptor)


def _without_sockets() -> None:
    """Close the registered sockets in a forked child.

    The numbers stay in use, since objects that were copied by the fork may still close them.
    """
    if _open:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in _open:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        _open.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_without_sockets)


class FramedSocket(asyncio.Protocol):
    """Protocol of messages in both directions, each with its size and a number in a header."""

    transport: Any

    def __init__(self) -> None:
        self._descriptor = -1
        self._received = bytearray()
        self._needed = _HEAD.size

    def connection_made(self, transport: Any) -> None:
        """Called by asyncio."""
        self.transport = transport
        self._descriptor = transport.get_extra_info("socket").fileno()
        keep_from_children(self._descriptor)
        if not is_ours(transport):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio before the socket is closed."""
        forget(self._descriptor)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        came = self._received
        came += data
        while len(came) >= self._needed:
            size, number = _HEAD.unpack_from(came)
            end = _HEAD.size + size
            if len(came) < end:
                self._needed = end
                return
            with memoryview(came) as view:
                letter = bytes(view[_HEAD.size : end])
            del came[:end]
            self._needed = _HEAD.size
            self.on_frame(number, letter)

    def send(self, number: int, letter: bytes) -> None:
        """Send a message, unless the connection is closing."""
        if not self.transport.is_closing():
            self.transport.write(_HEAD.pack(len(letter), number) + letter)

    def on_frame(self, number: int, letter: bytes) -> None:
        """Handle a received message."""
        raise NotImplementedError
