"""What the OpenTelemetry Collector accepts of a configuration, as far as one can tell without it.

The components are those of the image that the manifests name, `otel/opentelemetry-collector` 0.159.0
(https://github.com/open-telemetry/opentelemetry-collector-releases, distributions/otelcol/manifest.yaml); the signals of
each are those of its own README. Aliases that the Collector calls deprecated are not among them
(https://github.com/open-telemetry/opentelemetry-collector/pull/14397).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

ALL = frozenset({"traces", "metrics", "logs"})
COMPONENTS: dict[str, dict[str, frozenset[str]]] = {
    "receivers": {
        "nop": ALL, "otlp": ALL, "hostmetrics": frozenset({"metrics"}), "jaeger": frozenset({"traces"}), "kafka": ALL,
        "prometheus": frozenset({"metrics"}), "zipkin": frozenset({"traces"}),
    },
    "processors": {
        "batch": ALL, "memory_limiter": ALL, "attributes": ALL, "resource": ALL, "span": frozenset({"traces"}),
        "probabilistic_sampler": frozenset({"traces", "logs"}), "filter": ALL,
    },
    "exporters": {
        "debug": ALL, "nop": ALL, "otlp_grpc": ALL, "otlp_http": ALL, "file": ALL, "kafka": ALL,
        "prometheus": frozenset({"metrics"}), "prometheusremotewrite": frozenset({"metrics"}),
        "zipkin": frozenset({"traces"}),
    },
}  # fmt: skip
EXTENSIONS = {"zpages", "health_check", "pprof"}


def findings(config: dict[str, Any], variables: set[str]) -> list[str]:
    """Return what is wrong with a configuration. ``variables``: those that its container sets."""
    return [*_pipelines(config), *_components(config), *_variables(config, variables)]


def _pipelines(config: dict[str, Any]) -> Iterator[str]:
    found = config["service"]["pipelines"]
    yield from (f"no pipeline takes {signal}" for signal in sorted(ALL - {name.partition("/")[0] for name in found}))
    ways: dict[str, str] = {}
    for name, pipeline in found.items():
        signal = name.partition("/")[0]
        for part, known in COMPONENTS.items():
            for each in pipeline[part]:
                kind = each.partition("/")[0]
                if each not in config.get(part, {}):
                    yield f"{name}: {each} is not among the {part}"
                elif signal not in known.get(kind, ALL):
                    yield f"{name}: {each} takes no {signal}"
                if part == "exporters" and ways.setdefault(each, signal) != signal:
                    yield f"{name}: {each} sends it where {ways[each]} go"
        if pipeline["processors"][:1] != ["memory_limiter"]:
            yield f"{name}: the memory limiter is not first"


def _components(config: dict[str, Any]) -> Iterator[str]:
    pipelines = config["service"]["pipelines"].values()
    for part, known in COMPONENTS.items():
        used = {each for pipeline in pipelines for each in pipeline[part]}
        yield from (f"{each} is used by no pipeline" for each in sorted(config[part].keys() - used))
        yield from (f"the image has no {part[:-1]} {each}" for each in config[part] if each.partition("/")[0] not in known)
    extensions = set(config["service"]["extensions"])
    yield from (f"extension {each} is not there" for each in sorted(extensions - config["extensions"].keys()))
    yield from (f"the image has no extension {each}" for each in sorted(extensions - EXTENSIONS))
    for name, settings in config["exporters"].items():
        if name.startswith("otlp") and not settings.get("endpoint"):
            yield f"{name} has no endpoint"


def _variables(config: dict[str, Any], variables: set[str]) -> Iterator[str]:
    used = set(re.findall(r"\$\{env:(\w+)\}", str(config)))
    yield from (f"nobody sets {name}" for name in sorted(used - variables))
    yield from (f"nobody reads {name}" for name in sorted(variables - used - {"GOMEMLIMIT"}))
    for name, settings in config["exporters"].items():
        for said in (settings.get("endpoint", ""), *settings.get("headers", {}).values()):
            signal = name.partition("/")[2].upper()
            if "${env:" in said and f"${{env:{signal}_" not in said:
                yield f"{name} has {said}, which is another signal's"
