"""Name server for tests: a DNS server over UDP on a free loopback port, and a lookup that asks it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.support.patience import PATIENCE_S

_NXDOMAIN = 3
_A, _IN = 1, 1


@dataclass
class NameServer:
    """Running name server. ``records``: addresses by name; a name without any does not exist."""

    records: dict[str, list[str]]
    port: int = 0
    silent: bool = False
    """True to leave questions without an answer."""
    asked: list[str] = field(default_factory=list)

    async def lookup(self, name: str, port: int) -> Sequence[str]:
        """Ask this server for the addresses of a name, as the system would. Raises ``OSError``."""
        question = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + _labels(name) + struct.pack(">2H", _A, _IN)
        answer = await asyncio.to_thread(self._ask, question)
        flags, _, count = struct.unpack(">3H", answer[2:8])
        if flags & 15 == _NXDOMAIN:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        records = answer[len(question) :]
        return [socket.inet_ntoa(records[at + 12 : at + 16]) for at in range(0, 16 * count, 16)]

    def _ask(self, question: bytes) -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            asker.settimeout(0.3 if self.silent else 60.0)  # its thread may be late
            asker.sendto(question, ("127.0.0.1", self.port))
            try:
                return asker.recv(65_535)
            except TimeoutError:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution") from None


def _labels(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def _name_in(question: bytes) -> str:
    labels, at = [], 12
    while size := question[at]:
        labels.append(question[at + 1 : at + 1 + size].decode())
        at += 1 + size
    return ".".join(labels)


@contextlib.contextmanager
def name_server(**records: list[str]) -> Iterator[NameServer]:
    """Run a name server in a thread until the block ends. Underscores in names stand for dashes."""
    found = NameServer({name.replace("_", "-"): addresses for name, addresses in records.items()})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        found.port = server.getsockname()[1]
        thread = threading.Thread(target=_serve, args=(server, found))
        thread.start()
        try:
            yield found
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", ("127.0.0.1", found.port))
            thread.join(PATIENCE_S)


def _serve(server: socket.socket, found: NameServer) -> None:
    while True:
        question, asker = server.recvfrom(65_535)
        if not question:
            return
        found.asked.append(name := _name_in(question))
        addresses = found.records.get(name, [])
        code = 0 if addresses else _NXDOMAIN
        head = question[:2] + struct.pack(">5H", 0x8180 | code, 1, len(addresses), 0, 0)
        answers = [struct.pack(">3HIH", 0xC00C, _A, _IN, 5, 4) + socket.inet_aton(each) for each in addresses]
        if not found.silent:
            server.sendto(head + question[12:] + b"".join(answers), asker)
