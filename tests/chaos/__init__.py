"""``kill -9`` of everything on a real Ray of three nodes, while a batch runs: ``make chaos``."""
