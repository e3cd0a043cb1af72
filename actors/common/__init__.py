"""Small shared parts of the edge: errors, timers, units, file systems, garbage collection."""
