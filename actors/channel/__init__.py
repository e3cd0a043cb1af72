"""Channel actor: hosts one job's state machine, and journals each turn before acting on it."""
