"""Reading of journals: catalogue, calls, costs, results, samples, redaction."""
