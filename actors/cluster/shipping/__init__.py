"""Programs and files of a user, shipped to the nodes of a Ray cluster."""
