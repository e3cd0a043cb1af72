"""Generator of the dashboards in ``k8s/grafana`` and the rules in ``k8s/prometheus``: ``python -m k8s.boards``.

Users import the generated files. Generation keeps all queries uniform, and lets a test compare the files with the
runbook and with the metrics that Prometheus really scrapes.
"""
