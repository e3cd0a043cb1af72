"""Journal of a job over a storage backend, the reply index, the state folder."""
