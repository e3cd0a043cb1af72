"""Migration steps of the schema, in order. A released step is never changed."""
