"""Lines of OpenAI's batch files."""
