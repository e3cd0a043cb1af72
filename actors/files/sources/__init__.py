"""Sources of rows: lines, tables, iterables."""
