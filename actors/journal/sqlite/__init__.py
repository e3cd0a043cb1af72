"""Journals in SQLite files of this machine, a file a job: the embedded default."""
