"""HTTP transport of providers: connections, pool, prebuilt requests."""
