"""State K of a job: goals, items, events, commands, changes, and the Program base class."""

from cortex.state.state import State

__all__ = ["State"]
