"""Batch jobs of Mistral AI."""
