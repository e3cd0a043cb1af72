"""Cost of the scheduler and of channels by the number of nodes: real Ray nodes, simulation, computation."""
