"""Commands that change a running job: answer, budget, drain, limit, set."""
