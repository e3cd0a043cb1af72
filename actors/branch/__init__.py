"""Branch actor: executes bounded LLM calls, many at once, each in a clean context."""
