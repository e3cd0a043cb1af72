"""Admission of calls: permits, budget slices, hedging, pauses."""
