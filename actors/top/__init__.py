"""``cortex top``: what there is to see, how it is laid out, and the terminal that shows it."""
