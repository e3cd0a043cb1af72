"""Servers that are found under one name, such as the pods of a headless Service of Kubernetes: `--base-url
dns+http://NAME:PORT`. Each address of the name is a server; `policies.failures.discovery` decides which join and leave.

The name's own address is the first of a job's servers, and closed from the start: the job and its questions are known
by it, whatever addresses its servers have. The operating system looks the name up (``getaddrinfo``), with the search
domains and the hosts file of this machine.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from actors.providers.credentials.base_url import BY_NAME
from actors.providers.credentials.credential import at_host, without_password
from actors.providers.registry import is_own_server
from actors.routing.model_spec import ModelSpec, SetupError
from cortex.values.limits import BATCHES, JobTerms
from policies.failures.discovery import EVERY_S, FoundServers, after_answer, change_text

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Function that returns the IP addresses of a name, for connections to a port. Raises ``OSError``."""
TIMEOUT_S: Final = 10.0
"""Longest wait for an answer, in seconds: the system's resolver asks twice, for 5 s each (resolv.conf(5))."""
_PORTS: Final = {"http": 80, "https": 443}


async def looked_up(name: str, port: int) -> tuple[str, ...]:
    """Return the IP addresses of a name, in order, as the operating system knows them.

    Only those of the family that it prefers (RFC 6724): a pod of two families has an address in each. Raises
    ``OSError``.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    preferred = found[0][0] if found else None
    return tuple(sorted({str(at[0]) for family, _, _, _, at in found if family == preferred}))


class NamedServers(msgspec.Struct, frozen=True, kw_only=True):
    """Servers of a job as they are found under its name when a run begins."""

    spec: ModelSpec
    """Specification with all servers, those that are closed included."""
    found: FoundServers
    notice: str = ""
    """Notice for the user, in one line."""

    @property
    def open(self) -> list[str]:
        """Addresses of the servers that get calls."""
        return [server_at(self.spec, each) for each in self.found.addresses]


async def named_servers(
    spec: ModelSpec, before: JobTerms | None, lookup: Lookup = looked_up, quiet: bool = False
) -> NamedServers:  # fmt: skip
    """Return the servers of a specification that names them by DNS.

    ``before``: present terms of the job, if it has begun; its servers keep their places, those that are gone as closed
    ones, since calls on their way name them by these. ``quiet``: no call is on its way, so that servers that were gone
    before are left out. Raises ``SetupError`` where no server is known.
    """
    if spec.via == BATCHES:
        raise SetupError(f"--via {BATCHES}: a message batch goes to one server: give --base-url without {BY_NAME}")
    if not is_own_server(spec.base_url):
        raise SetupError(f"--base-url {spec.servers[0]}: this is no server of your own: leave out {BY_NAME}")
    there, last = _known(before, quiet)
    answer, problem = await _answer(spec, lookup)
    if problem and not last:
        advice = "see that the name is right, that a server is ready, and that this machine's network knows the name"
        raise SetupError(f"--base-url {spec.servers[0]}: {problem}: {advice}")
    found = FoundServers(tuple(answer or last))
    notice = _many(len(found.addresses), spec)
    if problem:
        notice = f"{problem}: the job goes on with the servers that it has; {notice}"
    urls = [server_at(spec, each) for each in dict.fromkeys((*there, *found.addresses))]
    return NamedServers(spec=spec.at_servers([spec.servers[0], *urls]), found=found, notice=notice)


def server_at(spec: ModelSpec, address: str) -> str:
    """Return the URL of the server at one address of a specification's name."""
    return at_host(spec.base_url, address)


def _known(terms: JobTerms | None, quiet: bool) -> tuple[list[str], list[str]]:
    """Return the addresses of the servers of a job of a name that keep their places, and of those that get calls."""
    if terms is None or not terms.is_closed(0):
        return [], []
    there, last = [], []
    for place in range(1, 1 + terms.peers):
        url = terms.routes[place].endpoint.rpartition("+")[2]
        if not _is_address(address := urlsplit(url).hostname or ""):
            continue
        if not terms.is_closed(place):
            last.append(address)
        elif quiet:
            continue  # pods come and go, and the number of a job's servers is bounded
        there.append(address)
    return there, last


async def _answer(spec: ModelSpec, lookup: Lookup) -> tuple[list[str], str]:
    """Return the addresses of a specification's name, each once; or why there are none."""
    parts = urlsplit(spec.base_url)
    name, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            found = [each for each in dict.fromkeys(await lookup(name, port)) if _is_address(each)]
    except TimeoutError:
        return [], f"{name} was not looked up within {TIMEOUT_S:.0f} s"
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is no name"
        return [], f"{name} cannot be looked up: {why}"
    return found, "" if found else f"{name} has no address"


def _is_address(text: str) -> bool:
    """Return True for an IP address without a zone, which would name an interface of one machine."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def _many(count: int, spec: ModelSpec) -> str:
    return f"{count} server{'s' if count > 1 else ''} found under {spec.dns}"


class NameWatch:
    """Lookups of a job's name while the job runs. Belongs to one event loop.

    ``servers``: those at the beginning of the run; ``failed``: True if its first lookup failed, which is told already.
    """

    def __init__(self, servers: NamedServers, lookup: Lookup = looked_up) -> None:
        self._spec = servers.spec
        self._lookup = lookup
        self._servers, self._before = servers.found, servers.found
        self._told = ""
        """Problem that was told last; a problem that stays is told once."""
        self._due_s: float | None = None
        self._task: asyncio.Task[tuple[list[str], str]] | None = None
        self.who = f"DNS ({without_password(self._spec.base_url)})"
        """Author of the changes, for the journal."""

    def news(self, now_s: float) -> tuple[str, list[str]]:
        """Return a line for the log, empty if there is none, and the addresses of all servers from now on if some join
        or leave, else none. Begins the next lookup when it is due. To be called now and then."""
        if self._due_s is None:
            self._due_s = now_s + EVERY_S
        if self._task is None and now_s >= self._due_s:
            self._due_s = now_s + EVERY_S
            self._task = asyncio.get_running_loop().create_task(_answer(self._spec, self._lookup))
        if self._task is None or not self._task.done():
            return "", []
        task, self._task = self._task, None
        answer, problem = task.result()
        if problem:
            return self._once(f"{problem}: the job goes on with the servers that it has"), []
        self._told = ""
        self._before, self._servers = self._servers, after_answer(self._servers, answer)
        if not (change := change_text(self._before, self._servers)):
            return "", []
        line = f"{self._spec.dns}: {change}; {_many(len(self._servers.addresses), self._spec)}"
        return line, [server_at(self._spec, each) for each in self._servers.addresses]

    def refused(self, why: str) -> str:
        """Note that the job did not take the latest change, and return a line for the log, empty if it was told
        before. The change is tried again after the next lookup."""
        self._servers = self._before
        return self._once(f"{self._spec.dns}: the servers stay as they are: {why}")

    async def close(self) -> None:
        """Stop a lookup under way."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _once(self, problem: str) -> str:
        told, self._told = self._told, problem
        return problem if problem != told else ""
