"""``cortex doctor``: what a run on this machine would stumble over, each as a line that says what to do."""
