"""A made-up provider, complete: one package and one row. Its wire form, header dialect and errors are like no other's."""
