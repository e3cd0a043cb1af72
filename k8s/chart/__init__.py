"""A Helm chart made from the manifests in ``k8s/``: ``python -m k8s.chart FOLDER``, which ``make chart`` packs."""
