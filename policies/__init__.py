"""Policies: small questions with pure answers. Leaves that know nothing of K, Ray or models."""
