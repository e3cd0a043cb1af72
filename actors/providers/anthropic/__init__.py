"""Provider Anthropic, and any server that speaks its Messages API: credential, errors, health checks."""
