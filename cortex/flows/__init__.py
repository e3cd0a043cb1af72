"""Plain async Python as a program's scheduler."""

from cortex.flows.awaitables import CallFailed, FlowError, Joined
from cortex.flows.context import Context
from cortex.flows.program import Flow, flow

__all__ = ["CallFailed", "Context", "Flow", "FlowError", "Joined", "flow"]
