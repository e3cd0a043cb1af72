"""Public Python client: run, submit and attach, sessions, results, tables of other libraries."""
