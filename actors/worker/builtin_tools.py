"""Built-in tools of every worker, for programs that only name them (``cortex.state.program.offered``): the sandbox and
the working folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cortex.programs.ralph import folder_closed, folder_opened, folder_round
from cortex.state.sandbox import sandbox

if TYPE_CHECKING:
    from actors.sandbox.child_pool import Sandbox

SANDBOX = sandbox.__name__
FOLDER = frozenset(tool.__name__ for tool in (folder_closed, folder_opened, folder_round))


class BuiltinTools:
    """Built-in tools by name. Each is imported, and the sandbox started, at first use."""

    def __init__(self) -> None:
        self._sandbox: Sandbox | None = None

    def find(self, name: str) -> Callable[..., Any] | None:
        """Return the function of a built-in tool; None for other names."""
        if name in FOLDER:
            from actors import workspace

            found: Callable[..., Any] = getattr(workspace, name)
            return found
        if name != SANDBOX:
            return None
        if self._sandbox is None:
            from actors.sandbox.child_pool import Sandbox

            self._sandbox = Sandbox()
        return self._sandbox.run

    def close(self) -> None:
        """End the sandbox, if it was started."""
        if self._sandbox is not None:
            self._sandbox.close()
