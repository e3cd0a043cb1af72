"""Attacks on a running job, each with its verdict: ``make adversary``; the short form is part of ``make chaos``."""
