"""Health checks of providers, for ``cortex doctor``."""
