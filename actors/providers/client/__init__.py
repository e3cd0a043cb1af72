"""Client of an API over HTTP: one for all wire forms, whose differences are values."""
