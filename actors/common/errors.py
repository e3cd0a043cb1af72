"""Errors that a user shall read as one line, wherever they appear."""

from __future__ import annotations


class UserError(Exception):
    """Base of all errors whose message says what is wrong and what to do: a traceback would add nothing."""

    def _render_traceback_(self) -> list[str]:
        """What Jupyter shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


USAGE = 2


class CommandError(Exception):
    """A command cannot do what was asked. The message is one clear line."""

    def __init__(self, said: str, code: int = USAGE) -> None:
        super().__init__(said)
        self.code = code
