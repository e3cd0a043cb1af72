"""Providers of models: the registry, a package for each provider, and the clients and transport that they share."""
