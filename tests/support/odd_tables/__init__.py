"""Odd tables: generated files, what each of their records is, and how other programs read the results."""
