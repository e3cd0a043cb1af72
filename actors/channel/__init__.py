"""Channel actor: hosts one job's state machine, journals each turn before acting on it."""
