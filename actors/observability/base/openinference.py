"""OpenInference: names and kinds that viewers of model calls read, beside those of OpenTelemetry's conventions.

Phoenix, Arize and Langfuse read them; the specification is at https://arize-ai.github.io/openinference/spec, the names
are those of PyPI ``openinference-semantic-conventions`` 0.1.42. Phoenix 20.26 (``phoenix/trace/otel.py``) derives the
attributes of a call from ``gen_ai.*`` and keeps those that a span has already; for other spans, a row among them, it
derives nothing, and lists show the kind as unknown. ``TABLE`` says which spans have which attributes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cortex.tracing.spans import SpanKind

KIND: Final = "openinference.span.kind"
INPUT: Final = "input.value"
INPUT_TYPE: Final = "input.mime_type"
OUTPUT: Final = "output.value"
OUTPUT_TYPE: Final = "output.mime_type"
MODEL: Final = "llm.model_name"
SYSTEM: Final = "llm.system"
"""The same as ``gen_ai.provider.name``, as the specification's page on the two conventions has it."""
FINISH_REASON: Final = "llm.finish_reason"
PROMPT_TOKENS: Final = "llm.token_count.prompt"
COMPLETION_TOKENS: Final = "llm.token_count.completion"
TOTAL_TOKENS: Final = "llm.token_count.total"
"""Tokens of prompt and reply. Without a total, Langfuse adds up all counts of a span, cached tokens twice."""
CACHE_READ: Final = "llm.token_count.prompt_details.cache_read"
CACHE_WRITE: Final = "llm.token_count.prompt_details.cache_write"
TOTAL_COST: Final = "llm.cost.total"
"""Cost of a call in USD. Only calls have it, since viewers add up the costs of all spans of a trace."""
TOOL_NAME: Final = "tool.name"

TEXT: Final = "text/plain"
JSON: Final = "application/json"

VALUE_CHARS_MAX: Final = 16_384
"""Most characters of ``input.value`` and ``output.value``, which lists show the beginning of. The whole messages of a
call are in its ``gen_ai.*.messages``."""


class Row(NamedTuple):
    """Attributes of one kind of span."""

    kind: str
    """Value of ``openinference.span.kind``."""
    texts: bool = False
    """Whether the span has input and output, where texts may be told."""


TABLE: Final[dict[SpanKind, Row]] = {
    SpanKind.GOAL: Row("CHAIN", texts=True),
    SpanKind.PART: Row("CHAIN", texts=True),
    SpanKind.SELECT: Row("PROMPT"),
    SpanKind.CALL: Row("LLM", texts=True),
    SpanKind.ATTEMPT: Row("CHAIN"),
    SpanKind.ABSORB: Row("CHAIN"),
    SpanKind.TOOL: Row("TOOL", texts=True),
    SpanKind.CHILD: Row("CHAIN", texts=True),
    SpanKind.JOIN: Row("CHAIN"),
    SpanKind.EPISODE: Row("CHAIN"),
    SpanKind.JOB: Row("CHAIN"),
}
"""Attributes by kind of span. A goal with a tool loop is an ``AGENT``. An attempt is no ``LLM`` span: its call is,
which has the tokens and the cost, whereas an attempt is one HTTP request below it."""
AGENT: Final = "AGENT"


def cut(text: str, chars_max: int) -> str:
    """Return at most ``chars_max`` characters of a text, with "…" as the last one if some were cut off."""
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def value_attributes(name: str, kind: str, text: str, mime: str, chars_max: int) -> list[tuple[str, str]]:
    """Return a text as value and type, named ``name`` and ``kind``; nothing if it is empty."""
    return [(name, cut(text, min(chars_max, VALUE_CHARS_MAX))), (kind, mime)] if text else []
