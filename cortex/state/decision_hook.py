"""Hook for the decisions of a step: each is passed to a listener with the numbers it was based on.

A running job has no listener. A replay of its journal takes the same decisions again, by the same code, and can listen
to them, so what is shown is what the decision was based on, not a second account. Listening changes nothing: the hook
is no part of K, of its bytes, or of what a step returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cortex.state.state import State


class DecisionListener(Protocol):
    """Listener to decisions."""

    def __call__(self, goal: int, what: str, seen: dict[str, Any], /) -> None:
        """Receive a decision: goal id (0: the job as a whole), name of the decision, and the values it was based on.

        The values may be part of K: read them at once, and never keep or change them.
        """


def listen(k: State, listener: DecisionListener) -> None:
    """Pass all further decisions over this K to `listener`.

    `listener` must not raise: its error would be attributed to the program.
    """
    k.__dict__["on_decision"] = listener
