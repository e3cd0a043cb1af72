"""``cortex doctor``: health checks of everything that a run on this machine needs."""
