"""Driver of a job: pumps rows from the source to the channel and results to the sink."""
