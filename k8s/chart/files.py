"""Files of the chart, as text: templates from the rendered manifests, values, their schema, notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from cortex import __version__
from k8s.chart.merge import merged, negated
from k8s.chart.sources import OPTIONAL, Object, component_names, rendered, without

VALUES = Path(__file__).parent / "values.yaml"
LEFT_OUT = {("Namespace", "cortex")}
"""Objects of the overlay that are not in the chart: `helm install --create-namespace` makes the namespace."""
KEEP = {"helm.sh/resource-policy": "keep"}
"""Annotation of the claim: `helm uninstall` leaves the journals (helm.sh/docs/howto/charts_tips_and_tricks)."""
TEXTS = {
    "registry.example.com/cortex": ("image", "repository"),
    "postgresql://cortex@postgresql.example.internal:5432/cortex?sslmode=verify-full": ("postgresql", "address"),
    "10.20.30.0/28": ("endpoints", "cidr"),
    "https://traces.example.com": ("collector", "traces"),
    "https://metrics.example.com/api/v1/otlp": ("collector", "metrics"),
    "https://logs.example.com/otlp": ("collector", "logs"),
    "00000000-0000-0000-0000-000000000000": ("aks", "clientId"),
    "arn:aws:iam::111122223333:role/cortex": ("eks", "roleArn"),
}
"""Texts of the manifests that are a value, which has them as its default."""
CLOUDS = ("clouds/gke", "clouds/eks", "clouds/aks", "clouds/openshift")
CHART = f"""\
apiVersion: v2
name: cortex
description: Very many bounded LLM calls on a standing Ray cluster, by KubeRay's operator, which must be there.
type: application
version: {__version__}
appVersion: "{__version__}"
kubeVersion: ">=1.29.0-0"
"""
NOTES = """\
Cortex {{ .Chart.AppVersion }} in {{ .Release.Namespace }}. What it takes beside this chart:
  kubectl label namespace {{ .Release.Namespace }} pod-security.kubernetes.io/enforce=restricted
  kubectl create secret -n {{ .Release.Namespace }} generic cortex-provider --from-file=api-key=KEYFILE
{{- if .Values.collector.enabled }}
  kubectl create secret -n {{ .Release.Namespace }} generic cortex-telemetry --from-literal=traces='Basic ...'  # if one is needed
{{- end }}
  kubectl wait -n {{ .Release.Namespace }} --for=condition=HeadPodReady raycluster/cortex --timeout 10m
"""
ONE_CLOUD = f"""\
{{{{- $clouds := 0 }}}}
{{{{- range .Values.components }}}}
{{{{- if has . (list {" ".join(f'"{name}"' for name in CLOUDS)}) }}}}{{{{- $clouds = add1 $clouds }}}}{{{{- end }}}}
{{{{- end }}}}
{{{{- if gt (int $clouds) 1 }}}}{{{{- fail "components names two clouds: name one" }}}}{{{{- end }}}}
"""


def texts() -> dict[str, str]:
    """Return the text of each file of the chart, by its path in it."""
    names = component_names()
    overlay = rendered()
    variants = {f'has "{name}" .Values.components': rendered(name) for name in names}
    variants |= {f"not .Values.{folder}.enabled": without(folder, overlay) for folder in OPTIONAL}
    made = {"templates/one-cloud.yaml": ONE_CLOUD}
    base, others = _by_name(overlay), {condition: _by_name(found) for condition, found in variants.items()}
    for key, one in base.items():
        own = {condition: _text(found[key]) for condition, found in others.items() if key in found}
        gone = [condition for condition, found in others.items() if key not in found]
        text = merged(_text(one), {condition: each for condition, each in own.items() if each != _text(one)})
        made[_path(key)] = _guarded(_with_values(text), negated(gone[0]) if gone else "")
    for condition, found in others.items():
        for key in found.keys() - base.keys():
            assert _path(key) not in made, f"two components add {key}"
            made[_path(key)] = _guarded(_with_values(_text(found[key])), condition)
    values = VALUES.read_text(encoding="utf-8")
    schema = json.dumps(_schema(yaml.safe_load(values), names), indent=1) + "\n"
    return {"Chart.yaml": CHART, "values.yaml": values, "values.schema.json": schema, "templates/NOTES.txt": NOTES, **made}


def _by_name(found: list[Object]) -> dict[tuple[str, str], Object]:
    keys = [(each["kind"], each["metadata"]["name"]) for each in found]
    return {key: each for key, each in zip(keys, found, strict=True) if key not in LEFT_OUT}


def _path(key: tuple[str, str]) -> str:
    return f"templates/{key[0].lower()}-{key[1]}.yaml"


def _guarded(text: str, condition: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n" if condition else text


# -- values ------------------------------------------------------------------------------------------------------------


def _text(one: Object) -> str:
    """Return an object as YAML in which what is a value stands as a word of its own, ``VALUE-…``."""
    one = json.loads(json.dumps(one))
    if one["kind"] == "RayCluster":
        spec = one["spec"]
        spec["upgradeStrategy"]["type"] = "VALUE-strategy"
        for group, name in zip(spec["workerGroupSpecs"], ("branches", "workers"), strict=True):
            group |= {"replicas": f"VALUE-{name}-min", "minReplicas": f"VALUE-{name}-min", "maxReplicas": f"VALUE-{name}-max"}
    if one["kind"] == "PersistentVolumeClaim":
        one["spec"]["storageClassName"] = "VALUE-class"
        one["spec"]["resources"]["requests"]["storage"] = "VALUE-size"
        one["metadata"]["annotations"] = {**one["metadata"].get("annotations", {}), **KEEP}
    made: str = yaml.dump(one, Dumper=_Dumper, width=10**9, allow_unicode=True)
    return made.replace("{{", '{{ "{{" }}')  # Prometheus' and Grafana's own templates


WORDS = {
    "VALUE-strategy": "{{ .Values.upgradeStrategy | quote }}",
    "VALUE-class": "{{ .Values.storage.class | quote }}",
    "VALUE-size": "{{ .Values.storage.size | quote }}",
    **{
        f"VALUE-{name}-{end}": f"{{{{ int .Values.{name}.{end} }}}}"
        for name in ("branches", "workers")
        for end in ("min", "max")
    },
}


def _with_values(text: str) -> str:
    """Put the values in: words, texts, the image's tag, and the namespace of the release."""
    for word, template in WORDS.items():
        text = text.replace(word, template)
    for given, (group, name) in TEXTS.items():
        quoted = "" if group == "image" else " | quote"  # a part of a text, or a whole one
        text = text.replace(given, f"{{{{ .Values.{group}.{name}{quoted} }}}}")
    image = "{{ .Values.image.repository }}"
    text = text.replace(f"{image}:{__version__}", f"{image}:{{{{ .Values.image.tag | default .Chart.AppVersion }}}}")
    return text.replace("namespace: cortex\n", "namespace: {{ .Release.Namespace }}\n")


class _Dumper(yaml.SafeDumper):
    """YAML dumper without aliases, which are lines that depend on others, and with texts of several lines as they are."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _schema(value: Any, names: list[str]) -> dict[str, Any]:
    """Return the JSON Schema of the values: no name beside those that have a default, each of its default's type."""
    if isinstance(value, dict):
        fields = {name: _schema(each, names) for name, each in value.items()}
        return {"type": "object", "properties": fields, "additionalProperties": False}
    if isinstance(value, list):
        return {"type": "array", "items": {"enum": names}}
    if isinstance(value, bool):
        return {"type": "boolean"}
    return {"type": "integer", "minimum": 0} if isinstance(value, int) else {"type": "string"}
