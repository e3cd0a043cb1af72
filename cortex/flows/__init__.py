"""Flows: programs written as plain async Python functions."""

from cortex.flows.awaitables import CallFailed, FlowError, Joined
from cortex.flows.context import Context
from cortex.flows.program import Flow, flow

__all__ = ["CallFailed", "Context", "Flow", "FlowError", "Joined", "flow"]
