"""Names of OpenTelemetry's semantic conventions, and the mapping of spans to them. No other module holds such names.

The conventions for generative AI are still in development, in a repository of their own
(https://github.com/open-telemetry/semantic-conventions-genai); a renamed attribute is renamed in this module alone. A
test compares the names with the registry that `opentelemetry-semantic-conventions` ships. Attributes without a name in
the conventions are called ``cortex.*``. Names of OpenInference, for its viewers, are in
``actors.observability.base.openinference``, and given to spans here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from actors.observability.base import openinference as oi
from actors.observability.base.settings import CHARS_MAX
from actors.providers.registry import address_in, telemetry_name
from cortex.tracing.spans import Span, SpanIds, SpanKind, goal_of

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
"""All tokens of the prompt. The Messages API counts tokens read from and written to its cache separately; the
convention's rule for it is to add them up."""
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_CREATION_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
COST: Final = "gen_ai.usage.cost"
"""Cost of a call in USD. Not in the conventions, which have no cost; Langfuse reads a call's cost from it
(``packages/shared/src/server/otel/OtelIngestionProcessor.ts``, ``extractCostDetails``)."""
TOKEN_TYPE: Final = "gen_ai.token.type"
WORKFLOW_NAME: Final = "gen_ai.workflow.name"
AGENT_NAME: Final = "gen_ai.agent.name"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
SESSION: Final = "session.id"
"""Attribute by which viewers group the traces of one run; its value is the job's name."""
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
HTTP_STATUS: Final = "http.response.status_code"

OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
TOKEN_USAGE: Final = "gen_ai.client.token.usage"

CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
INVOKE_AGENT: Final = "invoke_agent"
INVOKE_WORKFLOW: Final = "invoke_workflow"
PLAN: Final = "plan"

JOB: Final = "cortex.job.id"
GOAL_ID: Final = "cortex.goal.id"
ROW_KEY: Final = "cortex.row.key"
SAMPLE: Final = "cortex.sample"
ATTEMPT: Final = "cortex.attempt"
WAITED: Final = "cortex.waited"

COUNTS: Final = (
    (INPUT_TOKENS, oi.PROMPT_TOKENS), (OUTPUT_TOKENS, oi.COMPLETION_TOKENS), (oi.TOTAL_TOKENS,),
    (CACHE_READ_TOKENS, oi.CACHE_READ), (CACHE_CREATION_TOKENS, oi.CACHE_WRITE),
)  # fmt: skip
"""Names of each count of tokens, in the order in which spans have them: prompt, reply, both, read from the cache,
written to it."""
COSTS: Final = (COST, oi.TOTAL_COST)
"""Names of a call's cost."""
VARYING: Final = frozenset(
    {ATTEMPT, GOAL_ID, REQUEST_MAX_TOKENS, ROW_KEY, SAMPLE, WAITED, *COSTS, *(name for each in COUNTS for name in each)}
)
"""Attributes that differ from call to call. They are encoded first, so that the constant rest is one piece of bytes."""

INTERNAL, CLIENT = 1, 3
"""Kinds of spans, as OTLP numbers them."""

Value = str | bool | int | float | tuple[str, ...]
Attributes = list[tuple[str, Value]]


class SpanText(NamedTuple):
    """Span with the names and values of the conventions, before encoding."""

    trace_id: int
    span_id: int
    parent_id: int
    """Id of the parent span; 0 for the root of a trace."""
    name: str
    kind: int
    begin_ns: int
    end_ns: int
    failed: bool
    attributes: Attributes
    links: tuple[tuple[int, int], ...]
    remote: bool = False
    """Whether the parent span was written by another process."""


class JobAttributes(NamedTuple):
    """Ids and attributes that all spans of a job share."""

    ids: SpanIds
    common: Attributes
    launched_by: tuple[int, int] | None = None
    """Of a child job: trace id and span id, in its parent's traces, below which it runs."""
    chars_max: int = CHARS_MAX
    """Most characters of one text of a prompt or reply."""

    def trace_id(self, trace: int) -> int:
        """Return the trace id of one of the job's traces. Spans about a child job as a whole belong to its parent's
        trace."""
        if self.launched_by is not None and not goal_of(trace):
            return self.launched_by[0]
        return self.ids.trace_id(trace)


def job_of(
    name: str, ids: SpanIds, labels: tuple[tuple[str, str], ...] = (), traceparent: str = "",
    chars_max: int = CHARS_MAX,
) -> JobAttributes:  # fmt: skip
    """Return the attributes of a job's spans. ``labels``: the user's labels, by name. ``traceparent``: W3C header of
    the parent span, for a child job. ``chars_max``: most characters of one text of a prompt or reply."""
    common: Attributes = [(JOB, name), (SESSION, name.partition("~")[0])]
    common += [(f"cortex.label.{key}", value) for key, value in labels]
    return JobAttributes(ids, common, parsed_traceparent(traceparent), chars_max)


def parsed_traceparent(header: str) -> tuple[int, int] | None:
    """Return trace id and span id of a W3C ``traceparent`` header; None if the header names none, or names a trace
    that is not sampled."""
    parts = header.split("-")
    if len(parts) < 4 or parts[3][-1:] not in ("1", "3", "5", "7", "9", "b", "d", "f"):
        return None
    return int(parts[1], 16), int(parts[2], 16)


@lru_cache(64)
def provider_of(endpoint: str) -> str:
    """Provider of a route's endpoint by the convention's name (``actors.providers.registry.telemetry_name``)."""
    return telemetry_name(endpoint)


@lru_cache(64)
def server_of(endpoint: str) -> Sequence[tuple[str, Value]]:
    """Return the server attributes of an endpoint: host, and port if the URL gives one."""
    parts = urlsplit(address_in(endpoint))
    if not parts.hostname:
        return []
    found: Attributes = [(SERVER_ADDRESS, parts.hostname)]
    if parts.port is not None:
        found.append((SERVER_PORT, parts.port))
    return found


def describe_span(span: Span, job: JobAttributes) -> SpanText:
    """Return a span with the names of the conventions."""
    ids, facts = job.ids, span.facts
    name, kind, attributes = _DESCRIBE[span.what](span, facts)
    row = oi.TABLE[span.what]
    if row.texts:
        attributes += _texts(span.what, facts, job.chars_max)
    attributes.append((oi.KIND, oi.AGENT if facts.get("tools") else row.kind))
    if span.failed:
        attributes.append((ERROR_TYPE, span.failed))
    attributes += job.common
    parent_id, remote = ids.span_id(span.above) if span.above else 0, False
    if job.launched_by is not None and span.what is SpanKind.JOB:
        parent_id, remote = job.launched_by[1], True
    links = tuple([(job.trace_id(trace), ids.span_id(key)) for trace, key in span.links]) if span.links else ()
    return SpanText(
        job.trace_id(span.trace), ids.span_id(span.key), parent_id, name, kind, int(span.begin_s * 1e9),
        int(span.end_s * 1e9), bool(span.failed), attributes, links, remote,
    )  # fmt: skip


Description = tuple[str, int, Attributes]


def _goal(span: Span, facts: dict[str, Any]) -> Description:
    parts: Attributes = [(GOAL_ID, facts["goal"])]
    if "row" in facts:
        parts.append((ROW_KEY, facts["row"]))
    parts.append(("cortex.goal.kind", span.name))
    if "status" in facts:
        parts.append(("cortex.goal.status", facts["status"]))
    if "part" in facts:
        parts.append(("cortex.goal.part", facts["part"]))
    if facts.get("tools"):  # a tool loop: calls and tools in turn, until the goal is met
        return f"{INVOKE_AGENT} {span.name}", INTERNAL, [*parts, (OPERATION, INVOKE_AGENT), (AGENT_NAME, span.name)]
    return f"goal {span.name}", INTERNAL, parts


def _select(span: Span, facts: dict[str, Any]) -> Description:
    parts: Attributes = [("cortex.route", facts.get("route", 0))]
    if span.name:
        parts.append(("cortex.constructor", span.name))
    return "select", INTERNAL, parts


def _call(span: Span, facts: dict[str, Any]) -> Description:
    endpoint = facts["endpoint"]
    parts: Attributes = [(GOAL_ID, facts["goal"]), (SAMPLE, facts["sample"])]
    if facts["max_tokens"]:
        parts.append((REQUEST_MAX_TOKENS, facts["max_tokens"]))
    if "input" in facts:
        parts += _counts(facts)
    if "cost_nusd" in facts:
        parts += [(name, facts["cost_nusd"] / 1e9) for name in COSTS]
    provider, model = provider_of(endpoint), facts["asked_model"]
    parts += [
        (OPERATION, CHAT), (PROVIDER, provider), (REQUEST_MODEL, model), (oi.SYSTEM, provider), (oi.MODEL, model),
        ("cortex.attempts", facts["attempts"]),
    ]  # fmt: skip
    parts += server_of(endpoint)
    if "model" in facts:
        stop = facts["stop"]
        parts += [(RESPONSE_MODEL, facts["model"]), (FINISH_REASONS, (stop,)), (oi.FINISH_REASON, stop)]
    if facts.get("reused"):
        parts.append(("cortex.reused", True))
    return f"{CHAT} {model}", CLIENT, parts


def _counts(facts: dict[str, Any]) -> Attributes:
    """Return the tokens of a call. Those of the cache are left out where they are 0."""
    prompt, reply, read, made = facts["input"], facts["output"], facts["cache_read"], facts["cache_creation"]
    parts: Attributes = []
    for names, count in zip(COUNTS, (prompt, reply, prompt + reply, read, made), strict=True):
        if count or names[0] not in (CACHE_READ_TOKENS, CACHE_CREATION_TOKENS):
            parts += [(name, count) for name in names]
    return parts


def _attempt(span: Span, facts: dict[str, Any]) -> Description:
    parts: Attributes = [(ATTEMPT, facts["attempt"])]
    if facts.get("by"):
        parts += [(WAITED, waited_s(facts["waited_s"])), ("cortex.branch", facts["by"])]
    parts.append(("cortex.route", facts["route"]))
    if facts.get("status"):
        parts.append((HTTP_STATUS, facts["status"]))
    if facts.get("error"):
        parts.append(("cortex.provider.error", facts["error"]))
    parts += [(f"cortex.{name}", facts[name]) for name in ("probe", "abandoned", "sent") if name in facts]
    return "attempt", CLIENT, parts


def waited_s(seconds: float) -> float:
    """Return seconds rounded to the microsecond. Equal to ``round(seconds, 6)``, without its detour over decimal
    digits."""
    return int(seconds * 1e6 + 0.5) / 1e6


def _absorb(span: Span, facts: dict[str, Any]) -> Description:
    if "goals" in facts:  # the reply was a plan, which created goals
        parts: Attributes = [(OPERATION, PLAN), (AGENT_NAME, span.name), ("cortex.goals", facts["goals"])]
        return f"{PLAN} {span.name}", INTERNAL, parts
    return "absorb", INTERNAL, []


def _tool(span: Span, facts: dict[str, Any]) -> Description:
    parts: Attributes = [
        (OPERATION, EXECUTE_TOOL), (TOOL_NAME, span.name), (oi.TOOL_NAME, span.name), (GOAL_ID, facts["goal"]),
    ]  # fmt: skip
    if "id" in facts:
        parts.append((TOOL_CALL_ID, facts["id"]))
    if facts.get("by"):
        parts.append(("cortex.worker", facts["by"]))
    return f"{EXECUTE_TOOL} {span.name}", INTERNAL, parts


def _child(span: Span, facts: dict[str, Any]) -> Description:
    return f"child {short(span.name)}", INTERNAL, [(GOAL_ID, facts["goal"]), ("cortex.program", span.name)]


def _join(span: Span, facts: dict[str, Any]) -> Description:
    return "join", INTERNAL, [(GOAL_ID, facts["goal"]), ("cortex.goals", facts["goals"])]


def _episode(span: Span, facts: dict[str, Any]) -> Description:
    parts: Attributes = [(f"cortex.{name}", facts[name]) for name in ("why", "route") if name in facts]
    return span.name, INTERNAL, parts


def _job(span: Span, facts: dict[str, Any]) -> Description:
    program = short(span.name)
    parts: Attributes = [
        (OPERATION, INVOKE_WORKFLOW), (WORKFLOW_NAME, program), ("cortex.program", span.name),
        ("cortex.outcome", facts["outcome"]), ("cortex.run", facts["run"]), ("cortex.calls", facts["calls"]),
        ("cortex.attempts", facts["attempts"]), (INPUT_TOKENS, facts["input"]), (OUTPUT_TOKENS, facts["output"]),
        ("cortex.cost.known_usd", facts["cost_nusd"] / 1e9), ("cortex.cost.assumed_usd", facts["assumed_nusd"] / 1e9),
        ("cortex.rows.succeeded", facts["succeeded"]), ("cortex.rows.failed", facts["rows_failed"]),
    ]  # fmt: skip
    if facts["why"]:
        parts.append(("cortex.why", facts["why"]))
    return f"{INVOKE_WORKFLOW} {program}", INTERNAL, parts


def short(program: str) -> str:
    """Return a program's name without its module."""
    return program.rpartition(":")[2].rpartition(".")[2] or program


_DESCRIBE: dict[SpanKind, Callable[[Span, dict[str, Any]], Description]] = {
    SpanKind.GOAL: _goal, SpanKind.PART: _goal, SpanKind.SELECT: _select, SpanKind.CALL: _call,
    SpanKind.ATTEMPT: _attempt,
    SpanKind.ABSORB: _absorb, SpanKind.TOOL: _tool, SpanKind.CHILD: _child, SpanKind.JOIN: _join,
    SpanKind.EPISODE: _episode,
    SpanKind.JOB: _job,
}  # fmt: skip


# -- content of requests and replies, where capturing is allowed -------------------------------------------------------


def _texts(what: SpanKind, facts: dict[str, Any], chars_max: int) -> Attributes:
    """Return the texts of a span, if it has any: input and output, and the messages of a call. ``chars_max``: most
    characters of one text."""
    parts: Attributes = []
    for fact, (name, kind) in _VALUES.items():
        if fact in facts:
            text = facts[fact].decode(errors="replace")
            parts += oi.value_attributes(name, kind, text, oi.JSON, chars_max)
    call = what is SpanKind.CALL
    if "prompt" in facts and (fields := _fields(facts["prompt"])):
        parts += _asked(fields, chars_max, call)
    if "reply" in facts and (fields := _fields(facts["reply"])):
        parts += _answered(fields, chars_max, call)
    return parts


_VALUES: Final = {"input_json": (oi.INPUT, oi.INPUT_TYPE), "output_json": (oi.OUTPUT, oi.OUTPUT_TYPE)}
"""Names of the values of a program, by fact."""
_UNREADABLE: Final = (
    LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError, msgspec.MsgspecError,
)  # fmt: skip
"""Errors of reading a body that is not in the form of the Messages API: bodies come from users and servers as they
are, so such a span has no text."""


def _fields(body: bytes) -> dict[str, Any]:
    """Return a request or reply; empty if it cannot be read."""
    try:
        found = msgspec.json.decode(body)
    except _UNREADABLE:
        return {}
    return found if isinstance(found, dict) else {}


def _asked(fields: dict[str, Any], chars_max: int, messages: bool) -> Attributes:
    """Return a request as its latest text, and as the convention's message attributes if ``messages``."""
    try:
        told = [{"role": one["role"], "parts": _parts(one["content"], chars_max)} for one in fields["messages"]]
        system = _parts(fields["system"], chars_max) if fields.get("system") else []
        text = _text(told[-1]["parts"]) if told else ""
        parts: Attributes = [*oi.value_attributes(oi.INPUT, oi.INPUT_TYPE, text, oi.TEXT, chars_max)]
        if messages:
            parts.append((INPUT_MESSAGES, _json(told)))
            if system:
                parts.append((SYSTEM_INSTRUCTIONS, _json(system)))
    except _UNREADABLE:
        return []
    return parts


def _answered(fields: dict[str, Any], chars_max: int, messages: bool) -> Attributes:
    """Return a reply as its text, and as the convention's message attribute if ``messages``."""
    try:
        told = _parts(fields["content"], chars_max)
        facts = {"role": "assistant", "parts": told, "finish_reason": fields["stop_reason"]}
        parts: Attributes = [*oi.value_attributes(oi.OUTPUT, oi.OUTPUT_TYPE, _text(told), oi.TEXT, chars_max)]
        if messages:
            parts.append((OUTPUT_MESSAGES, _json([facts])))
    except _UNREADABLE:
        return []
    return parts


def _text(parts: list[dict[str, Any]]) -> str:
    """Return the texts among the parts of a message; the parts as JSON if there is no text, as in a use of a tool."""
    return "".join([one["content"] for one in parts if one["type"] == "text"]) or (_json(parts) if parts else "")


def _parts(content: Any, chars_max: int) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "content": oi.cut(content, chars_max)}]
    return [_part(block, chars_max) for block in content]


def _part(block: dict[str, Any], chars_max: int) -> dict[str, Any]:
    match block["type"]:
        case "text":
            return {"type": "text", "content": oi.cut(_string(block["text"]), chars_max)}
        case "thinking":
            return {"type": "reasoning", "content": oi.cut(_string(block.get("thinking", "")), chars_max)}
        case "tool_use":
            return {
                "type": "tool_call", "id": block["id"], "name": block["name"],
                "arguments": _cut_value(block["input"], chars_max),
            }  # fmt: skip
        case "tool_result":
            told = _cut_value(block.get("content"), chars_max)
            return {"type": "tool_call_response", "id": block["tool_use_id"], "response": told}
        case other:
            return {"type": other}


def _cut_value(value: Any, chars_max: int) -> Any:
    """Return a value, or the beginning of its JSON if that is longer than ``chars_max`` characters."""
    if chars_max >= CHARS_MAX:
        return value
    text = _string(value)
    return value if len(text) <= chars_max else oi.cut(text, chars_max)


def _string(value: Any) -> str:
    """Return a text; the JSON of any other value, which a malformed body has in the place of one."""
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
