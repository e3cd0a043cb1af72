"""Parts of the built-in programs: prompts, parsers, documents, tasks."""
