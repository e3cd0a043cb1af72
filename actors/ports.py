"""What an actor may know of the world it runs in. ``runtime`` gives it over Ray, ``inline`` in one event loop."""

from __future__ import annotations

from typing import Any, Protocol

from actors.errors import ClearError
from cortex.program import Program


class Away(Exception):
    """A peer does not answer now. It may be dead, or come back with what it held."""


class Gone(Exception):
    """A peer is dead for good, or never was."""


class ClusterError(ClearError):
    """The cluster cannot be reached or used. The message is one clear line."""


class Peer(Protocol):
    """Another actor, reached by name."""

    name: str

    async def ask(self, method: str, *args: Any) -> Any:
        """Call a method and wait for its answer. Raises ``Away``, ``Gone``, or what the method raised."""

    def tell(self, method: str, *args: Any) -> None:
        """Call a method and wait for nothing; a dead peer hears nothing."""


class Runtime(Protocol):
    """The world as seen by actors. All arguments between actors are bytes, text and numbers."""

    def now_s(self) -> float:
        """Seconds since 1970."""

    def peer(self, name: str) -> Peer:
        """An actor by name, whether it lives or not."""

    async def names(self, prefix: str) -> tuple[str, ...]:
        """Names of the actors that live, those that begin so."""

    async def start_actor(self, role: str, name: str, *args: Any) -> Peer:
        """The actor of this name, made if there is none: role ``channel``, ``branch`` or ``worker``."""

    async def end_actor(self, name: str) -> None:
        """End an actor for good."""

    def load_program(self, where: str, params_json: bytes, job: str = "") -> Program:
        """A program by the place that its terms name, for a job. Raises ``ValueError`` with one clear line."""


    def share_program(self, where: str, job: str = "") -> None:
        """Let other processes of a job find a program that this one has."""

    def fingerprint(self, where: str, params_json: bytes) -> str:
        """Hash over a program's source, its parameters and the release."""
