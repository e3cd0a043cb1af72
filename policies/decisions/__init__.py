"""Decisions: joins, votes, trace sampling, selection of prompt parts and files, progress and stagnation, version
checks.
"""
