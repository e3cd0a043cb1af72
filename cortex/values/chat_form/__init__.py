"""Chat completions as a second form of requests and results, for users who have files in it."""
