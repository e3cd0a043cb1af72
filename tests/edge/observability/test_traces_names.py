"""Names: every one that looks like a convention's is in the registry that the conventions' package ships."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from actors.observability.base import conventions, openinference
from cortex.tracing.spans import SpanKind

NOT_SHIPPED = {"plan"}
"""In the conventions' own repository, and not in the package yet."""
NOT_THERE = {"gen_ai.usage.cost"}
"""Not in the conventions: what Langfuse reads a cost from."""
OPENINFERENCE = {
    "openinference.span.kind", "input.value", "input.mime_type", "output.value", "output.mime_type", "llm.model_name",
    "llm.system", "llm.finish_reason", "llm.token_count.prompt", "llm.token_count.completion", "llm.token_count.total",
    "llm.token_count.prompt_details.cache_read", "llm.token_count.prompt_details.cache_write", "llm.cost.total",
    "tool.name",
}  # fmt: skip
"""As ``SpanAttributes`` of PyPI openinference-semantic-conventions 0.1.42 has them."""
OPENINFERENCE_KINDS = {
    "TOOL", "CHAIN", "LLM", "RETRIEVER", "EMBEDDING", "AGENT", "RERANKER", "GUARDRAIL", "EVALUATOR", "PROMPT", "DECISION",
}  # fmt: skip


def registry() -> set[str]:
    """Every attribute and metric name that the package knows."""
    found: set[str] = set()
    for package in ("attributes", "metrics", "_incubating.attributes", "_incubating.metrics"):
        inside = importlib.import_module(f"opentelemetry.semconv.{package}")
        for module in pkgutil.iter_modules(inside.__path__, inside.__name__ + "."):
            known = vars(importlib.import_module(module.name))
            found |= {value for name, value in known.items() if name.isupper() and isinstance(value, str)}
    return found


def ours() -> dict[str, Any]:
    return {name: value for name, value in vars(conventions).items() if name.isupper() and isinstance(value, str)}


def test_names_of_the_conventions_are_as_the_registry_has_them():
    known = registry()
    assert "gen_ai.request.model" in known and len(known) > 500
    named = {value for value in ours().values() if "." in value and not value.startswith("cortex.")}
    assert len(named) > 20
    assert named - known == NOT_THERE


def test_names_of_openinference_are_as_its_package_has_them():
    named = {value for value in vars(openinference).values() if isinstance(value, str) and "." in value}
    assert {value for value in named if not value.startswith(("actors.", "/")) and " " not in value} == OPENINFERENCE


def test_each_kind_of_span_has_a_kind_of_openinference():
    assert set(openinference.TABLE) == set(SpanKind)
    assert {row.kind for row in openinference.TABLE.values()} | {openinference.AGENT} <= OPENINFERENCE_KINDS


def test_operations_are_those_of_the_registry():
    from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import GenAiOperationNameValues

    known = {one.value for one in GenAiOperationNameValues}
    operations = {
        conventions.CHAT,
        conventions.EXECUTE_TOOL,
        conventions.INVOKE_AGENT,
        conventions.INVOKE_WORKFLOW,
        conventions.PLAN,
    }
    assert operations - known == NOT_SHIPPED


def test_providers_are_those_of_the_registry_or_ours():
    from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import GenAiProviderNameValues

    known = {one.value for one in GenAiProviderNameValues}
    for endpoint in (
        "https://api.anthropic.com",
        "https://bedrock-runtime.eu.amazonaws.com",
        "https://x.googleapis.com",
    ):
        assert conventions.provider_of(endpoint) in known
    assert conventions.provider_of("sim:abc") == "cortex.sim"
    assert conventions.provider_of("local") == "cortex.local"


def test_no_other_file_of_ours_knows_such_a_name():
    from tests.support.repository_rules import PACKAGES, sources

    for path in sources(PACKAGES):
        if path.name != "conventions.py":
            assert '"gen_ai.' not in path.read_text(), path
        if path.name != "openinference.py":
            assert '"llm.' not in path.read_text() and '"openinference.' not in path.read_text(), path
