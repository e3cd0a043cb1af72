"""Provider Microsoft Foundry: credential, client settings, errors."""
