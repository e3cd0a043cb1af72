"""Base classes of errors that are shown to users as one line."""

from __future__ import annotations


class UserError(Exception):
    """Base of all errors whose message says what is wrong and what to do; a traceback would add nothing."""

    def _render_traceback_(self) -> list[str]:
        """Return the text that Jupyter shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


USAGE = 2
"""Exit code for a command that cannot do what was asked."""


class CommandError(Exception):
    """Command that cannot do what was asked. The message is one line."""

    def __init__(self, text: str, code: int = USAGE) -> None:
        super().__init__(text)
        self.code = code


def error_words(error: BaseException) -> str:
    """Return the type and the text of an error, of which an author's ``__str__`` may raise another."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, whose text cannot be read"
