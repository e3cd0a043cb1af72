"""Values: prompts, replies, schemas, ledgers, counters, limits."""
