"""Actors of one node speak over Unix sockets: where those stand, who may be at the other end, and how letters follow
each other.

Ray starts actors, finds them by name, watches and ends them, and carries what is said between nodes. Within a node it
takes about a millisecond of CPU on either side for each message; by sockets a chain of calls is three to four times as
fast (docs/decisions/0005).
Letters are unpickled, so both ends look whether the other one is this very user, who could as well write into the
process's memory: that is why there are none where the system, unlike Linux, does not say who it is. The folder is this
user's alone besides, but it may stand in one that others can write to.
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
"""Before each letter: how many bytes it has, and the number of the question that it is, or answers."""
SO_PEERCRED = getattr(socket, "SO_PEERCRED", 0)
_CREDENTIALS = struct.Struct("iII")
"""Process, user and group of the other end: ``struct ucred`` of unix(7)."""


class SocketAddresses:
    """The sockets of one node's actors, in the folder of Ray's session there; ``node`` is Ray's name for it."""

    def __init__(self, session: str, node: str) -> None:
        self._folder = os.path.join(session, "cortex")
        self._node = node

    def path(self, name: str) -> str:
        """Where the actor of this name has its socket. On another node of the same machine, or in another release,
        it is another path."""
        known = "\n".join((self._node, __version__, name)).encode()
        return os.path.join(self._folder, hashlib.blake2b(known, digest_size=6).hexdigest())

    def are_safe(self) -> bool:
        """Whether the folder is there, and nobody but this user can have put anything into it."""
        try:
            found = os.lstat(self._folder)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077

    def bound(self, path: str) -> socket.socket:
        """A new socket at a path in the folder, which is made if need be. Raises ``OSError``."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        if not self.are_safe():
            raise PermissionError(f"{self._folder} is another user's, or open to others")
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.bind(path)
        except OSError:
            made.close()
            raise
        return made


def sockets_of(node: Any, name: str) -> SocketAddresses | None:
    """Those of the node that this process lives on, by what Ray has of it here; None where there can be none."""
    return SocketAddresses(node.get_session_dir_path(), name) if node is not None and sys.platform == "linux" else None


def is_ours(transport: asyncio.Transport) -> bool:
    """Whether the other end is a process of this user."""
    reported = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(reported)[1] == os.geteuid())


_open: set[int] = set()
"""File descriptors of our sockets in this process."""


def keep_from_children(descriptor: int) -> None:
    """A process that is forked off here, by a tool or a program, shall not have this socket: whoever is at the other
    end would not hear of our death while that one lives."""
    _open.add(descriptor)


def forget(descriptor: int) -> None:
    """It is closed now, and its number may be another file's."""
    _open.discard(descriptor)


def _without_sockets() -> None:
    """In such a process. The numbers stay taken, since objects that were copied with it may still close them."""
    if _open:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in _open:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        _open.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_without_sockets)


class FramedSocket(asyncio.Protocol):
    """Letters one after the other, both ways, each with its length and a number before it."""

    transport: Any

    def __init__(self) -> None:
        self._descriptor = -1
        self._received = bytearray()
        self._needed = _HEAD.size

    def connection_made(self, transport: Any) -> None:
        """By asyncio."""
        self.transport = transport
        self._descriptor = transport.get_extra_info("socket").fileno()
        keep_from_children(self._descriptor)
        if not is_ours(transport):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """By asyncio, before the socket is closed."""
        forget(self._descriptor)

    def data_received(self, data: bytes) -> None:
        """By asyncio."""
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
        """Send a letter, if anybody is there."""
        if not self.transport.is_closing():
            self.transport.write(_HEAD.pack(len(letter), number) + letter)

    def on_frame(self, number: int, letter: bytes) -> None:
        """A letter has come."""
        raise NotImplementedError
