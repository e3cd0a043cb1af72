"""Direct sockets between actors of one cluster: addresses, server, client, serialization."""
