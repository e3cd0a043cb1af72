"""Calls: requests, attempts, answers, votes, prompt-cache warm-up."""
