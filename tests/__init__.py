"""The tests, by kind: unit, properties, spec, edge, cli, cluster, notebook."""
