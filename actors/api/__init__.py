"""Public client of the edge: run, submit and attach, one session a run, results, tables of other libraries."""
