"""What an actor may know of the world it runs in. ``runtime`` gives it over Ray, ``inline`` in one event loop."""

from __future__ import annotations

from typing import Any, Protocol

from actors.common.errors import UserError
from actors.journal.journal import Journal
from actors.journal.reply_index import ReplyCache
from actors.ports.telemetry import Telemetry
from cortex.state.program import Program


class PeerUnavailable(Exception):
    """A peer does not answer now. It may be dead, or come back with what it held."""


class ChannelNotStarted(PeerUnavailable):
    """A channel that nobody has told to begin, or that could not: it does not come back by itself."""


class PeerGone(Exception):
    """A peer is dead for good, or never was."""


class ClusterLost(PeerGone):
    """This process itself hears nothing of the cluster any more. The message says why, in a clause."""


class ClusterError(UserError):
    """The cluster cannot be reached or used. The message is one clear line."""


class Peer(Protocol):
    """Another actor, reached by name."""

    name: str

    async def ask(self, method: str, *args: Any) -> Any:
        """Call a method and wait for its answer. Raises ``PeerUnavailable``, ``PeerGone``, or what the method
        raised.
        """

    def tell(self, method: str, *args: Any) -> None:
        """Call a method and wait for nothing; a dead peer hears nothing."""


NEAR_MAX, NEAR_BYTES_MAX = 1_024, 1 << 20
"""So many calls or replies go together, and so many bytes, where a message goes no further than this process: it costs
next to nothing there, but each turn that it leads to is a commit."""


def is_near(peer: Peer) -> bool:
    """Whether what this peer is asked stays in this process."""
    return getattr(peer, "near", False)


class StateStore(Protocol):
    """A state folder as an actor uses it: what stands in it outlives whoever wrote it."""

    def prepare(self) -> object:
        """Make the folder, private to its user. Raises ``StoreError`` where it cannot serve."""

    def journal(self, job: str, *, create: bool = False) -> Journal:
        """A job's journal, opened for itself; ``create``: made if there is none. Raises ``StoreError``."""

    def memory(self, job: str) -> ReplyCache:
        """The index of remembered replies, as one job sees it. Raises ``StoreError``."""


class NoteStore(Protocol):
    """A few words that outlive every actor, as long as the cluster lives."""

    def put(self, name: str, value: bytes) -> None:
        """Have this stand under the name, in place of what stood there."""

    def found(self, prefix: str) -> dict[str, bytes]:
        """What stands under names that begin so."""


class Runtime(Protocol):
    """The world as seen by actors. All arguments between actors are bytes, text and numbers."""

    @property
    def notes(self) -> NoteStore:
        """What outlives every actor."""

    @property
    def telemetry(self) -> Telemetry:
        """Who looks on at what happens in this process."""

    def now_s(self) -> float:
        """Seconds since 1970, by a clock that may be set, forwards and backwards."""

    def monotonic_s(self) -> float:
        """Seconds since some moment of this node's, by a clock that never goes back. Never sent to another actor."""

    def node(self) -> str:
        """The machine, or its share of one, that dies as a whole with all actors on it."""

    def incarnation(self, name: str) -> str:
        """An id that no actor of this name ever had before."""

    async def is_dead(self, name: str, incarnation: str) -> bool:
        """Whether this incarnation of an actor is known to have ended. False is no proof that it lives."""

    def store(self, folder: str) -> StateStore:
        """The state folder of that name."""

    def apart(self, journal: Journal) -> bool:
        """Whether a channel had better wait for its commits in a thread: others work in the same event loop."""

    def peer(self, name: str) -> Peer:
        """An actor by name, whether it lives or not."""

    async def names(self, prefix: str) -> tuple[str, ...]:
        """Names of the actors that live, those that begin so."""

    async def nodes(self) -> tuple[str, ...]:
        """The nodes that live, by name."""

    async def cores(self) -> int:
        """Of all nodes together: how many processes of ours they have room for. 0: that is not for us to say."""

    async def make_room(self, branches: int, workers: int) -> None:
        """Have the cluster grow, where it can, until there is a core for each; it shrinks by itself."""

    async def start_actor(self, role: str, name: str, *args: Any, avoid: tuple[str, ...] = ()) -> Peer:
        """The actor of this name, made if there is none: role ``channel``, ``branch`` or ``worker``.

        A new one is not placed on the nodes to ``avoid``, as long as there is another.
        """

    async def end_actor(self, name: str) -> None:
        """End an actor for good, having let it close."""

    async def kill_actor(self, name: str) -> None:
        """End an actor by force, whatever it does."""

    def load_program(self, where: str, params_json: bytes, job: str = "") -> Program:
        """A program by the place that its terms name, for a job. Raises ``ValueError`` with one clear line."""

    def share_program(self, where: str, job: str = "") -> None:
        """Let other processes of a job find a program that this one has."""

    def fingerprint(self, where: str, params_json: bytes) -> str:
        """Hash over a program's source, its parameters and the release."""
