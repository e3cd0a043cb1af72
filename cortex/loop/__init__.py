"""Channel's state machine: step, event handlers, deadlines, termination, invariants."""
