"""The manifests in ``k8s/``: rendered by the real kustomize, held against schemas, a list of policies and the operator's rules."""
