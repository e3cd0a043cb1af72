"""Parts of the ready programs: prompts, records, fast replay."""
