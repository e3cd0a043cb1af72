"""Interface of an actor's environment. ``actors.runtime`` implements it over Ray and in one event loop."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from actors.common.errors import UserError
from actors.journal.journal import Journal
from actors.journal.reply_index import ReplyCache
from actors.ports.telemetry import Telemetry
from cortex.state.program import Program


class PeerUnavailable(Exception):
    """Peer that does not answer now. It may be dead, or return with its state."""


class ChannelNotStarted(PeerUnavailable):
    """Channel that was not told to start, or could not start: it does not return by itself."""


class PeerGone(Exception):
    """Peer that is dead for good, or never existed."""


class ClusterLost(PeerGone):
    """This process has lost its connection to the cluster. The message says why, in a clause."""


class ClusterError(UserError):
    """Cluster that cannot be reached or used. The message is one line."""


class Peer(Protocol):
    """Another actor, addressed by name."""

    name: str

    async def ask(self, method: str, *args: Any) -> Any:
        """Call a method and return its answer.

        Raises ``PeerUnavailable``, also for an answer that does not come in time (``actors.messaging.answer_bounds``),
        ``PeerGone``, or what the method raised.
        """

    def tell(self, method: str, *args: Any) -> None:
        """Call a method without waiting for an answer; a dead peer ignores it."""


NEAR_MAX, NEAR_BYTES_MAX = 1_024, 1 << 20
"""Calls or replies, and bytes, of one message within this process. A message costs next to nothing there, but each turn
that it leads to is a commit."""


def is_near(peer: Peer) -> bool:
    """Return whether the peer is in this process."""
    return getattr(peer, "near", False)


class StateStore(Protocol):
    """State folder as an actor uses it: its content outlives its writers."""

    def prepare(self) -> object:
        """Create the folder, private to its user. Raises ``StoreError`` if it cannot be used."""

    def journal(self, job: str, *, create: bool = False) -> Journal:
        """Return a job's journal, opened separately; ``create``: create it if there is none. Raises ``StoreError``."""

    def memory(self, job: str) -> ReplyCache:
        """Return the index of remembered replies, for one job. Raises ``StoreError``."""


class NoteStore(Protocol):
    """Small values that outlive every actor, as long as the cluster lives."""

    def put(self, name: str, value: bytes) -> None:
        """Store a value under this name, replacing the previous one."""

    def found(self, prefix: str) -> dict[str, bytes]:
        """Return the values whose names have this prefix."""


class Runtime(Protocol):
    """Environment of actors. All arguments between actors are bytes, text and numbers."""

    @property
    def notes(self) -> NoteStore:
        """Values that outlive every actor."""

    @property
    def telemetry(self) -> Telemetry:
        """Observers of this process."""

    def now_s(self) -> float:
        """Return the seconds since 1970, by a clock that may be set forwards and backwards."""

    def monotonic_s(self) -> float:
        """Return seconds by a clock of this node that never goes back. They are never sent to another actor."""

    def steady_s(self) -> float:
        """Return the seconds since this node was started, time in suspension included: a clock that nobody sets."""

    def boot_id(self) -> str:
        """Return the id of this node's start, to which ``steady_s`` belongs; empty if it is not known."""

    def node(self) -> str:
        """Return the name of the machine, or part of one, that fails as a whole with all its actors."""

    def incarnation(self, name: str) -> str:
        """Return an id that no actor of this name has had before."""

    async def is_dead(self, name: str, incarnation: str) -> bool:
        """Return True if this incarnation of an actor is known to have ended. False does not prove that it lives."""

    def store(self, folder: str) -> StateStore:
        """Return the state folder with this address."""

    def apart(self, journal: Journal) -> bool:
        """Return True if a channel should wait for its commits in a thread, since other actors share its event loop."""

    def peer(self, name: str) -> Peer:
        """Return an actor by name, whether it lives or not."""

    async def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of live actors with this prefix."""

    async def nodes(self) -> tuple[str, ...]:
        """Return the names of live nodes."""

    def hosts(self) -> dict[str, str]:
        """Return what people call the live nodes, as ``nodes`` found them last: names of pods or hosts, by node. A node
        whose own name is such a name may be left out.
        """

    async def ended_nodes(self, names: Collection[str]) -> tuple[str, ...]:
        """Return those of these nodes, none of which lives, that were ended on purpose: scaled down, or told to end."""

    async def lost_nodes(self, since_s: float) -> dict[str, tuple[str, float]]:
        """Return the nodes that were lost since a Unix time and are not back, the earliest first: name of the pod or
        host, and Unix time, by node."""

    async def cores(self) -> int:
        """Return the number of actor processes that all nodes together have room for; 0: not decided by this project.
        """

    async def make_room(self, branches: int, workers: int) -> None:
        """Ask the cluster to grow, if it can, until there is a core for each actor; it shrinks by itself."""

    async def start_actor(self, role: str, name: str, *args: Any, avoid: tuple[str, ...] = ()) -> Peer:
        """Return the actor of this name, started if there is none: role ``channel``, ``branch`` or ``worker``.

        A new actor is not placed on the nodes to ``avoid``, as long as there is another.
        """

    async def end_actor(self, name: str) -> None:
        """End an actor for good, after it has closed."""

    async def kill_actor(self, name: str) -> None:
        """End an actor by force."""

    def load_program(self, where: str, params_json: bytes, job: str = "") -> Program:
        """Return a program for a job by the location that its terms name. Raises ``ValueError`` with one line."""

    def share_program(self, where: str, params_json: bytes, job: str = "") -> None:
        """Let other processes of a job find a program of this process."""

    def fingerprint(self, where: str, params_json: bytes) -> str:
        """Return a hash of a program's source, its parameters and the release."""
