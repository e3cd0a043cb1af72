"""Front ends of the simulated provider: HTTP and in memory."""
