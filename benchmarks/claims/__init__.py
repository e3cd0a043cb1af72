"""Published claims about systems of bounded calls, measured with the simulated provider."""
