"""Goals: lifecycle, changes of a program, child jobs, shards, results."""
