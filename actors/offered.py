"""What every worker has for programs that only name it, since its work is none of theirs: the sandbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cortex.sandbox import sandbox

if TYPE_CHECKING:
    from actors.sandbox.pool import Sandbox

NAMES = frozenset({sandbox.__name__})


class Offered:
    """By name; each begun when it is first wanted."""

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None

    def find(self, name: str) -> Callable[..., Any] | None:
        """What runs under this name; None where nothing does."""
        if name not in NAMES:
            return None
        if self._sandbox is None:
            from actors.sandbox.pool import Sandbox

            self._sandbox = Sandbox()
        return self._sandbox.run

    def close(self) -> None:
        """End what was begun."""
        if self._sandbox is not None:
            self._sandbox.close()
