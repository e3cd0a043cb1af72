"""Values: prompts, conversations, replies, schemas, templates, ledgers, counters, limits."""
