"""Client of OpenAI's chat completions, which many providers and servers implement: wire form, errors, limits."""
