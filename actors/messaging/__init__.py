"""Messages between actors: inbox entries, payloads, acknowledged reports."""
