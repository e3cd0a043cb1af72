"""What happened in a job, and why, told from its journal alone: turns, the story of one goal, K as it was."""
