"""Commands that estimate before a run: cost and time of a job, sizes of votes."""
