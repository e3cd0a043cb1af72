"""Journals in files of this machine, a SQLite file a job: the embedded default."""
