"""Estimates: prices, tokens, durations, forecasts."""
