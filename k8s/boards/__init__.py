"""Where the dashboards in ``k8s/grafana`` and the rules in ``k8s/prometheus`` are written: ``python -m k8s.boards``.

What people import are those files. They are generated so that every query says the same thing in the same way, and so
that a test can hold the files, the runbook and what Prometheus really scrapes against each other.
"""
