"""What the actors need to live in a Ray cluster; ``actors.runtime`` alone speaks to Ray."""
