"""Provider Amazon Bedrock: credential, client settings, errors, health checks."""
