"""Estimates: prices, tokens, durations, forecasts, samples of rows, and the choice of transport."""
