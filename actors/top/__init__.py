"""``cortex top``: sources, layout, and the terminal view."""
