"""Files of the user: sources that rows are read from, and sinks that results are written to."""
