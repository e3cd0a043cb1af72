"""Changes to jobs that are not running: fork, removal, retry, offline edits, cancelled batches."""
