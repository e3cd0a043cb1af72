"""The steps of the schema, the first one first. A step that was released is never changed."""
