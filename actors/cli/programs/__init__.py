"""Commands for programs: a new one from a template, and saved ones."""
