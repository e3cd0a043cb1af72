"""What the actors need to live in a Ray cluster; ``actors.runtime.ray_runtime`` alone speaks to Ray."""
