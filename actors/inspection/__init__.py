"""Inspection of a job from its journal alone: turns, the timeline of one goal, K at a given turn."""
