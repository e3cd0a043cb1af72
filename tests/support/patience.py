"""How long tests wait for what has to come."""

PATIENCE_S = 120.0
"""Seconds that a test waits for what has to come. It ends a test that hangs, and claims nothing: on a busy machine a
process may stand still for seconds. Below ``faulthandler_timeout``, which ends all tests."""
