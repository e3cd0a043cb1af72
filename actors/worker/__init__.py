"""Worker actor: runs tools and model-written code."""
