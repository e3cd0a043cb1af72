"""Commands of the tool ``control``: one command per use, by name, each with its fields.

The docstrings of the command classes are part of the tool's description, which models read.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from cortex.control.tasks import CommandRefused, StopRule
from cortex.values.conversation import ToolDef

NAME = "control"


class _Command(msgspec.Struct, frozen=True, tag_field="command", forbid_unknown_fields=True):
    """Base of the commands; the field ``command`` names it."""


class ChildSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Specification of a child task. A field that is not given is taken from the parent, except commands."""

    goal: str
    items: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    grants: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    stop: StopRule = StopRule()
    returns: str = "text"
    framing: str = ""
    apart: bool = False
    shows: tuple[int, ...] = ()
    """Tasks whose results its first context shows."""


class PushSubtasks(_Command, frozen=True, tag="push_subtasks"):
    """Make children: those that are given, or ``at_most`` of this task's items to each."""

    children: tuple[ChildSpec, ...] = ()
    at_most: int = 0


class NextTask(_Command, frozen=True, tag="next_task"):
    """Let the next child have the loop; what it returns is the answer."""


class Suspend(_Command, frozen=True, tag="suspend"):
    """Put this task aside; the parent goes on."""

    why: str = ""


class Resume(_Command, frozen=True, tag="resume"):
    """Let a child that was suspended go on where it stopped."""

    task: int


class SubmitResult(_Command, frozen=True, tag="submit"):
    """This task's result."""

    value: Any


class Project(_Command, frozen=True, tag="project"):
    """A part of the state, and nothing else of it: ``of`` some tasks, their ``last`` entries."""

    what: Literal["task", "results", "failures", "deeds", "budget", "checkpoints", "approvals", "missing"]
    of: tuple[int, ...] = ()
    last: int = 0


class Fork(_Command, frozen=True, tag="fork"):
    """Branches: this task's own goal, once under each framing."""

    framings: tuple[str, ...]


class Merge(_Command, frozen=True, tag="merge"):
    """One result of many: the children's, or a fork's branches'."""

    how: Literal["sum", "majority", "first", "list"]
    group: int = 0


class Compare(_Command, frozen=True, tag="compare"):
    """The results side by side, and how many agree."""

    group: int = 0


class CheckpointTask(_Command, frozen=True, tag="checkpoint"):
    """Keep where this task stands, under a name."""

    name: str
    note: str = ""


class Restore(_Command, frozen=True, tag="restore"):
    """Go back to there; what came after is let go."""

    name: str


class Fresh(_Command, frozen=True, tag="fresh"):
    """Go on in a fresh context, which is told the state in short, and this note."""

    note: str = ""


class Retry(_Command, frozen=True, tag="retry"):
    """Let a child that has ended be done again, framed otherwise."""

    task: int
    framing: str = ""


class Drop(_Command, frozen=True, tag="drop"):
    """Let a child go, and what serves it."""

    task: int


class Defer(_Command, frozen=True, tag="defer"):
    """Put a child off (without one, this task) until nothing else is pending."""

    task: int = 0
    why: str = ""


class RequestApproval(_Command, frozen=True, tag="request_approval"):
    """Ask a person for something, and wait."""

    subject: str


class Degrade(_Command, frozen=True, tag="degrade"):
    """Mark the run: its answer is less than what was asked for."""

    why: str


class ShowTrace(_Command, frozen=True, tag="trace"):
    """The last that happened."""

    last: int = 10


Command = (
    PushSubtasks | NextTask | Suspend | Resume | SubmitResult | Project | Fork | Merge | Compare | CheckpointTask
    | Restore
    | Fresh | Retry | Drop | Defer | RequestApproval | Degrade | ShowTrace
)  # fmt: skip
"""Any command."""
KINDS: dict[str, type[msgspec.Struct]] = {str(kind.__struct_config__.tag): kind for kind in Command.__args__}
ALONE = frozenset({"next_task", "suspend", "resume", "submit", "fresh", "defer", "request_approval", "restore"})
"""Commands after which another context may have the loop: each must be the only tool use of its turn."""


def read(given: dict[str, Any]) -> Command:
    """Parse a command from the tool's input. Raises ``CommandRefused``."""
    name = given.get("command")
    if not isinstance(name, str) or name not in KINDS:
        raise CommandRefused(f"there is no command {name!r}: {', '.join(KINDS)}")
    try:
        made: Command = msgspec.convert(given, Command)
    except msgspec.ValidationError as error:
        raise CommandRefused(f"{name}: {error}") from None
    return made


def tool(allowed: tuple[str, ...]) -> ToolDef:
    """Return the definition of ``control`` for the model, with these commands only."""
    properties: dict[str, Any] = {"command": {"enum": list(allowed)}}
    lines = []
    for name in allowed:
        kind = KINDS[name]
        lines.append(f"{name}: {kind.__doc__}")
        fields = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
        for field in msgspec.structs.fields(kind):
            properties.setdefault(field.encode_name, _loose(fields.get(field.encode_name, {})))
    description = "Gives a command to the runtime that keeps the tasks. " + " ".join(lines)
    return ToolDef(NAME, description, {"type": "object", "properties": properties, "required": ["command"]})


def _loose(schema: dict[str, Any]) -> dict[str, Any]:
    """A field's schema without its default, and without references."""
    loose = {name: value for name, value in schema.items() if name != "default"}
    return {"type": "array", "items": {"type": "object"}} if "$ref" in str(loose) else loose
