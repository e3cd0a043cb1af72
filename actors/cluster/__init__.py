"""Support for actors in a Ray cluster. Only ``actors.runtime.ray_runtime`` imports Ray."""
