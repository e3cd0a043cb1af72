"""What Cortex costs and what it reaches, measured beside what people would use instead: see README.md."""
