"""Journals in a PostgreSQL database, which channels on any machine reach. Needs the extra ``postgres``."""
