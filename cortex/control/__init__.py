"""Explicit control of a messages-and-tools loop: a pure state machine behind one tool, and the loop around it."""

from cortex.control.loop import Kit, alone, run
from cortex.control.state import Bounds, Control, Rules, begun
from cortex.control.tasks import Each, Refused, Status, Stop, Task

__all__ = ["Bounds", "Control", "Each", "Kit", "Refused", "Rules", "Status", "Stop", "Task", "alone", "begun", "run"]
