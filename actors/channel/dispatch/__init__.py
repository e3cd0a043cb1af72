"""Dispatch of calls to branches: selection, liveness, lost calls."""
