"""Explicit control of a messages-and-tools loop: a pure state machine behind one tool, and the loop around it."""

from cortex.control.loop import ToolKit, alone, run
from cortex.control.state import ControlBounds, ControlState, DispatchRules, begun
from cortex.control.tasks import CommandRefused, ControlTask, StopRule, SubtaskTemplate, TaskStatus

__all__ = [
    "CommandRefused",
    "ControlBounds",
    "ControlState",
    "ControlTask",
    "DispatchRules",
    "StopRule",
    "SubtaskTemplate",
    "TaskStatus",
    "ToolKit",
    "alone",
    "begun",
    "run",
]
