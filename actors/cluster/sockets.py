"""Actors of one node speak over Unix sockets: where those stand, who may be at the other end, and how letters follow
each other.

Ray starts actors, finds them by name, watches and ends them, and carries what is said between nodes. Within a node it
takes about a millisecond of CPU on either side for each message (``benchmarks/README.md``); a socket takes a tenth.
Letters are unpickled, so both ends look whether the other one is this very user, who could as well write into the
process's memory; nobody else can enter the folder in any case.
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

PATH_BYTES_MAX = 103
"""Bytes in the path of a Unix socket: 104 with its end on macOS and BSD, 108 on Linux (sys/un.h)."""
_HEAD = struct.Struct(">IQ")
"""Before each letter: how many bytes it has, and the number of the question that it is, or answers."""
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the other end: ``struct ucred`` of unix(7)."""


class Sockets:
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
        if len(path.encode()) > PATH_BYTES_MAX:
            raise OSError(f"{path} is too long for a socket")
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.bind(path)
        except OSError:
            made.close()
            raise
        return made


def sockets_of(node: Any, name: str) -> Sockets | None:
    """Those of the node that this process lives on, by what Ray has of it here; None where it lives on none."""
    return None if node is None or sys.platform == "win32" else Sockets(node.get_session_dir_path(), name)


def is_ours(transport: asyncio.Transport) -> bool:
    """Whether the other end is a process of this user; where the system cannot tell, the folder has to do."""
    if sys.platform != "linux":
        return True
    told = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(told)[1] == os.geteuid())


class Letters(asyncio.Protocol):
    """Letters one after the other, both ways, each with its length and a number before it."""

    transport: Any

    def __init__(self) -> None:
        self._came = bytearray()
        self._needed = _HEAD.size

    def connection_made(self, transport: Any) -> None:
        """By asyncio."""
        self.transport = transport
        if not is_ours(transport):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """By asyncio."""
        came = self._came
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
            self.took(number, letter)

    def send(self, number: int, letter: bytes) -> None:
        """Send a letter, if anybody is there."""
        if not self.transport.is_closing():
            self.transport.write(_HEAD.pack(len(letter), number) + letter)

    def took(self, number: int, letter: bytes) -> None:
        """A letter has come."""
        raise NotImplementedError
