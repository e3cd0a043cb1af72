"""Provider Google Vertex AI: credential, client settings, errors, prices, health checks."""
