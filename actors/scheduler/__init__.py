"""Cortex actor: hosts the scheduler, supervises actors, shows its status."""
