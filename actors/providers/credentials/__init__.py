"""Credentials of providers: API keys, clouds, reload."""
