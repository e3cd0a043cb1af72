"""Batches of the Gemini API, and the form of its own requests and responses, which they have."""
