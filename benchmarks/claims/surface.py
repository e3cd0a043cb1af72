"""Claims about the tool surface: cost of offering a bounded call more tools than it needs.

A subtask needs two tools of n. Three ways to offer them:

    static    every call is offered all n
    meta      every call is offered one tool that does the work of all n and lists them with their arguments
    fresh     a fresh bounded call for the subtask, offered its two tools only

All methods share task and reader. A *wrong tool* is a use of a tool other than the next one for the named item.
Success is reported and no claim is made about it: a wrong tool does no further harm here.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

import cortex
from actors.simulator.settings import SimulatorSettings
from benchmarks.claims.core_run import run
from cortex.programs.chatloop import turns_max
from cortex.programs.parts import label_task
from cortex.programs.parts.label_task import LABELS, READ, RECORD, read, record
from cortex.values.conversation import Conversation, ToolDef, ToolResult
from cortex.values.reply import ToolUse

COUNTS = (2, 8, 32, 128)
RUNS = 100
ITEMS = 8
PARTS_MAX = 1_000
METHODS = ("static", "meta", "fresh")

VERBS = ("list", "open", "send", "move", "tag", "merge", "share", "print", "count", "close", "rename")
NOUNS = ("invoice", "ticket", "contact", "folder", "meeting", "message", "report", "order", "page", "branch",
         "account", "photo")  # fmt: skip


def others(count: int) -> list[ToolDef]:
    """Return ``count`` tools that the subtask does not need, as a toolbox has them."""
    made = []
    for place in range(count):
        verb, noun = VERBS[place % len(VERBS)], NOUNS[place // len(VERBS) % len(NOUNS)]
        properties = {"item": {"type": "string", "description": f"name of the {noun}"}, "note": {"type": "string"}}
        schema = {"type": "object", "properties": properties, "required": ["item"]}
        made.append(ToolDef(f"{verb}_{noun}", f"{verb.capitalize()} one {noun} of the user's.", schema))
    return made


def meta_of(tools: list[ToolDef]) -> ToolDef:
    """Return one tool that stands for all of these."""
    lines = []
    for tool in tools:
        fields = []
        for name, schema in tool.schema["properties"].items():
            fields.append(f"{name}: {'|'.join(schema['enum'])}" if "enum" in schema else name)
        lines.append(f"{tool.name}({', '.join(fields)}): {tool.description}")
    properties = {"action": {"enum": [tool.name for tool in tools]}, "arguments": {"type": "object"}}
    schema = {"type": "object", "properties": properties, "required": ["action", "arguments"]}
    return ToolDef("do", "Do one action. " + " ".join(lines), schema)


def offered(method: str, tools: int) -> tuple[ToolDef, ...]:
    """Return the tools offered to each call."""
    if method == "fresh":
        return (READ, RECORD)
    every = [READ, RECORD, *others(tools - 2)]
    return (meta_of(every),) if method == "meta" else tuple(every)


@cortex.flow
async def surface(
    ctx: cortex.Context, method: Literal["static", "meta", "fresh"], count: int, seed: int = 0
) -> dict[str, Any]:  # fmt: skip
    """Run the subtask as a loop; return the number of tool uses and of wrong-tool uses."""
    items = label_task.names(ITEMS, seed)
    talk = Conversation(method, tools=offered(method, count)).said(label_task.task(items))
    done: dict[str, list[str]] = {item: [] for item in items}
    uses = wrong = 0
    for _ in range(turns_max(ITEMS)):
        answer = await ctx.ask(talk, max_tokens=200)
        if not answer.uses:
            return {"uses": uses, "wrong": wrong, "right": label_task.counts_in(answer.text) == label_task.truth(items)}
        results = []
        for use in answer.uses:
            inner = ToolUse(use.id, use.input["action"], use.input["arguments"]) if method == "meta" else use
            item = str(inner.input.get("item"))
            turn = "read" if "read" not in done.get(item, ()) else "record"
            uses, wrong = uses + 1, wrong + (inner.name != turn)
            done.setdefault(item, []).append(inner.name)
            result = await ctx.use(inner, (read, record))
            results.append(ToolResult(use.id, "done") if inner.name not in ("read", "record") else result)
        talk = talk.replied(answer, results)
    return {"uses": uses, "wrong": wrong, "right": False}


def _measured(method: Any, tools: int, runs: int) -> dict[str, Any]:
    calm = run(surface(method=method, count=tools), SimulatorSettings(error=0), parts_max=PARTS_MAX)
    assert calm.answer == {"uses": 2 * ITEMS, "wrong": 0, "right": True}, calm.answer
    ended = [
        run(surface(method=method, count=tools, seed=seed), SimulatorSettings(seed=seed), parts_max=PARTS_MAX).answer
        for seed in range(1, runs + 1)
    ]
    uses = sum(each["uses"] for each in ended)
    return {
        "tokens_a_call": calm.provider.tally.input_tokens / calm.samples,
        "surface_tokens": _tokens(offered(method, tools)), "uses": uses,
        "wrong": sum(each["wrong"] for each in ended),
        "wrong_per_thousand": 1_000 * sum(each["wrong"] for each in ended) / uses,
        "success": sum(each["right"] for each in ended) / runs,
    }  # fmt: skip


def _tokens(tools: tuple[ToolDef, ...]) -> int:
    from actors.simulator import tokenizer

    return tokenizer.count(msgspec.json.encode([tool.fields() for tool in tools]))


def measure(small: bool = False) -> dict[str, Any]:
    """Return tokens a call, wrong-tool uses and success by number of tools and method, and whether the claims hold."""
    counts, runs = ((2, 32), 10) if small else (COUNTS, RUNS)
    rows: list[dict[str, Any]] = []
    fresh = _measured("fresh", counts[0], runs)  # equal prompts for any number of tools
    for tools in counts:
        assert offered("fresh", tools) == offered("fresh", counts[0])
        row = {method: _measured(method, tools, runs) for method in ("static", "meta")}
        rows.append({"tools": tools, "runs": runs, **row, "fresh": fresh})
    first, last = rows[0], rows[-1]
    return {
        "rows": rows, "items": ITEMS, "labels": list(LABELS),
        "holds": {
            "a fresh bounded call costs the same however many tools there are": all(
                row["fresh"]["tokens_a_call"] == first["fresh"]["tokens_a_call"] for row in rows
            ),
            "offered all, every call pays for every tool": last["static"]["tokens_a_call"]
            > last["fresh"]["tokens_a_call"] + 10 * (last["tools"] - 2),
            "one tool for all is cheaper than all, and dearer than its own": last["fresh"]["tokens_a_call"]
            < last["meta"]["tokens_a_call"] < last["static"]["tokens_a_call"],
            "offered all, wrong tools are used more and more": last["static"]["wrong_per_thousand"]
            > 3 * max(1.0, last["fresh"]["wrong_per_thousand"]),
            "one tool for all does not take that away": last["meta"]["wrong_per_thousand"]
            > last["fresh"]["wrong_per_thousand"],
        },
    }  # fmt: skip
