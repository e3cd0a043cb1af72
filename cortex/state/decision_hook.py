"""Why K is as it is: each decision of a step, told with the numbers that it saw to whoever listens.

Nobody listens while a job runs. A replay of its journal takes the same decisions again, by the same code, and hears
them: so what is shown is what was seen, and not a second account of it. Listening changes nothing; it is no part of K,
of its bytes, or of what a step returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cortex.state.state import State


class Tell(Protocol):
    """Whoever listens."""

    def __call__(self, goal: int, what: str, seen: dict[str, Any], /) -> None:
        """Of which goal (0: of the job as a whole), what was decided, and what was seen.

        What is given may be a part of K: to be read at once, never kept or changed.
        """


def listen(k: State, tell: Tell) -> None:
    """From now on this hears what is decided over this K. It must not raise: that would be taken for the program's."""
    k.__dict__["tell"] = tell
