"""Admission of a call: permits, budget slices, hedging, pauses."""
