"""Simulation: the same actors that run inline, on an event loop with virtual time; one seed determines everything.

Only transport, clock, disk and provider are simulated, never an actor. ``python -m tests.simulation SEED --transcript``
replays a seed and prints what happens.
"""
