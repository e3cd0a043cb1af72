"""Files of this machine: how they are made, and what the system says about them."""
