"""Planning of a job: inputs of the estimate, sampled rows, row sizes."""
