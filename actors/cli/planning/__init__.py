"""The plan command: cost and time before a run, vote sizes."""
