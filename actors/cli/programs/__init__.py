"""Commands for programs: new from a template, saved ones."""
