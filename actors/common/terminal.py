"""Door to a terminal for styled text. Plain text goes through the streams of a command, which let nothing else out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cortex.values.display import printable

if TYPE_CHECKING:
    from rich.console import Console


def console(stream: Any = None, **options: Any) -> Console:
    """Return a console of rich over ``stream``, by default standard output, whose texts are printable.

    Rich writes its own escape sequences around the texts that it is given, and lets those in the texts pass (only BEL,
    BS, VT, FF and CR are removed: rich 15.0, ``control.strip_control_codes``).
    """
    from rich.console import Console
    from rich.segment import Segment

    class Printable(Console):
        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            return super()._render_buffer(
                each if each.control else Segment(printable(each.text), each.style) for each in buffer
            )

    return Printable(file=stream, **options)


class StyledStream:
    """View of a command's stream for rich, which has made the texts in it printable (``rich_proxied_file``)."""

    def __init__(self, stream: Any, write: Any) -> None:
        self._stream, self.write = stream, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
