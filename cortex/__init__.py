"""Cortex: very many bounded LLM calls under a scheduler that is plain code.

This is the public vocabulary. ``run``, ``batch``, ``submit`` and ``attach`` open the world; all else here is pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cortex.at_home import hides
from cortex.changes import (
    Abandon,
    Ask,
    Change,
    Checkpoint,
    Emit,
    Expect,
    Fail,
    Log,
    Observe,
    Reopen,
    Resolve,
    RunTool,
    Spawn,
    Vote,
    Wait,
)
from cortex.conversation import Conversation, ToolDef, ToolResult
from cortex.events import Row
from cortex.flows import CallFailed, Context, FlowError, Joined, flow
from cortex.limits import Limits
from cortex.program import Program, tool
from cortex.prompt import DoesNotFit, Part, Prompt, Role, Rule
from cortex.reply import Malformed, Reply, Said, ToolUse, as_choice, as_json, as_line, as_said
from cortex.state import Goal, Item, State, Status
from policies.failure import Failure, FailureKind
from policies.join import Join

if TYPE_CHECKING:
    from collections.abc import Callable

    batch: Callable[..., Any]
    run: Callable[..., Any]
    submit: Callable[..., Any]
    attach: Callable[..., Any]

__version__ = "0.1.0"

_DOOR = ("batch", "run", "submit", "attach")

__all__ = [
    "Abandon", "Ask", "CallFailed", "Change", "Checkpoint", "Context", "Conversation", "DoesNotFit", "Emit", "Expect",
    "Fail", "Failure", "FailureKind", "FlowError", "Goal", "Item", "Join", "Joined", "Limits", "Log", "Malformed",
    "Observe", "Part", "Program", "Prompt", "Reopen", "Reply", "Resolve", "Role", "Row", "Rule", "RunTool", "Said",
    "Spawn", "State", "Status", "ToolDef", "ToolResult", "ToolUse", "Vote", "Wait", "as_choice", "as_json", "as_line",
    "as_said", "attach", "batch", "flow", "run", "submit", "tool",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The one lazy door to the edge: what is pure stays importable without it."""
    if name in _DOOR:
        try:
            from actors.client import attach, batch, run, submit
        except ModuleNotFoundError as error:
            if error.name not in ("actors", "actors.client"):
                raise
            raise hides("actors", "a folder or file named actors") from None
        return {"batch": batch, "run": run, "submit": submit, "attach": attach}[name]
    if name == "testing":
        import cortex.testing as testing

        return testing
    raise AttributeError(f"module 'cortex' has no attribute {name!r}")
