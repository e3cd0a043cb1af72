"""Commands that administer a state folder and a machine: backup, costs, doctor, fork, remove."""
