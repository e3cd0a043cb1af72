"""The provider's API, as ``actors.providers.messages.client`` speaks it: credential, roads, errors, headers,
streams."""
