"""Programs of a user: loading, schemas, fingerprints, saved programs."""
