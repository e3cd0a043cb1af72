"""Cortex: very many bounded LLM calls under a scheduler that is plain code.

This module exports the public vocabulary. ``run``, ``batch``, ``embed``, ``submit`` and ``attach`` run jobs, and are
imported from ``actors`` on first use; everything else is pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cortex.package_guard import hides

# isort: split
# The guard comes first: it reports a foreign package of the same name before another import fails because of it.

from cortex.flows import CallFailed, Context, FlowError, Joined, flow
from cortex.state.changes import (
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
from cortex.state.events import Row
from cortex.state.program import Program, tool
from cortex.state.state import Goal, Item, State, Status
from cortex.values.conversation import Conversation, ToolDef, ToolResult
from cortex.values.limits import Limits
from cortex.values.prompt import DoesNotFit, Part, Prompt, Role, Rule
from cortex.values.reply import Malformed, Reply, Said, ToolUse, as_choice, as_json, as_line, as_said
from policies.decisions.join import Join
from policies.failures.failure import Failure, FailureKind

if TYPE_CHECKING:
    from collections.abc import Callable

    batch: Callable[..., Any]
    embed: Callable[..., Any]
    run: Callable[..., Any]
    submit: Callable[..., Any]
    attach: Callable[..., Any]

__version__ = "0.1.0"

_OURS = ("actors", "actors.api", "actors.api.client", "actors.api.tables", "actors.api.vectors")
_DOOR = ("batch", "embed", "run", "submit", "attach")

__all__ = [
    "Abandon", "Ask", "CallFailed", "Change", "Checkpoint", "Context", "Conversation", "DoesNotFit", "Emit", "Expect",
    "Fail", "Failure", "FailureKind", "FlowError", "Goal", "Item", "Join", "Joined", "Limits", "Log", "Malformed",
    "Observe", "Part", "Program", "Prompt", "Reopen", "Reply", "Resolve", "Role", "Row", "Rule", "RunTool", "Said",
    "Spawn", "State", "Status", "ToolDef", "ToolResult", "ToolUse", "Vote", "Wait", "as_choice", "as_json", "as_line",
    "as_said", "attach", "batch", "embed", "flow", "run", "submit", "tool",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import ``run``, ``batch``, ``embed``, ``submit`` and ``attach`` from ``actors`` on first use, so that the rest
    stays pure."""
    if name in _DOOR:
        try:
            if name == "batch":
                from actors.api.tables import batch

                return batch
            if name == "embed":
                from actors.api.vectors import embed

                return embed
            from actors.api.client import attach, run, submit
        except ModuleNotFoundError as error:
            if error.name not in _OURS:
                raise
            raise hides("actors", "a folder or file named actors") from None
        return {"run": run, "submit": submit, "attach": attach}[name]
    if name == "testing":
        import cortex.testing as testing

        return testing
    raise AttributeError(f"module 'cortex' has no attribute {name!r}")
