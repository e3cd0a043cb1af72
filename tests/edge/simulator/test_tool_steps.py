"""The reasoner as one half of a messages-and-tools loop: it takes the next step by what the conversation holds."""

from __future__ import annotations

from typing import Any, Literal

import anthropic
import msgspec
import pytest

import cortex
from actors.simulator.api.provider import SimulatedProvider
from actors.simulator.frontends.http_app import serve
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.reasoning.skills.tool_steps import act
from actors.simulator.request import BadRequest, read
from actors.simulator.settings import SimulatorSettings
from cortex.values.conversation import Conversation, ToolDef, ToolResult
from cortex.values.prompt import request_body
from cortex.values.reply import Reply, Said, TextBlock, ToolUse, Usage, as_said
from tests.support.patience import PATIENCE_S

NOTES = {"n1": "The app crashes. A bug.", "n2": "Wonderful, praise!", "n3": "A bug once more."}
TASK = """For each item, do these steps:
1. call read with item
2. call record with item and label

When all are done, answer with how many items have each label, in this form: bug: 2, praise: 1

Items: n1, n2, n3"""


@cortex.tool(repeatable=True)
def read_note(item: str) -> str:
    return NOTES[item]


def reads(item: str) -> str:
    """Read an item's text."""
    return NOTES[item]


def records(item: str, label: Literal["bug", "praise"]) -> str:
    """Record an item's label."""
    return "recorded"


READ, RECORD = (msgspec.structs.replace(ToolDef.of(f), name=name) for f, name in ((reads, "read"), (records, "record")))
OTHER = ToolDef("erase", "Erase an item.", {"type": "object", "properties": {"item": {"type": "string"}}})


def talk(task: str = TASK, tools: tuple[ToolDef, ...] = (READ, RECORD)) -> Conversation:
    return Conversation("t", tools=tools).said(task)


def used(conversation: Conversation, name: str, said: str, failed: bool = False, **given: Any) -> Conversation:
    use = ToolUse(f"t{len(conversation.turns)}", name, given)
    return conversation.replied(Said((use,)), [ToolResult(use.id, said, failed)])


def scene(conversation: Conversation) -> Any:
    return read(request_body(conversation, "sim", 200)).scene


def right(conversation: Conversation) -> Any:
    intent = act(scene(conversation))
    assert intent is not None
    deed = intent.right
    return (deed.name, deed.given) if deed.name else deed.text


def done(*pairs: tuple[str, str], conversation: Conversation | None = None) -> Conversation:
    conversation = conversation or talk()
    for item, label in pairs:
        conversation = used(conversation, "read", NOTES[item], item=item)
        conversation = used(conversation, "record", "recorded", item=item, label=label)
    return conversation


STEPS = [
    (talk(), ("read", {"item": "n1"})),
    (used(talk(), "read", NOTES["n1"], item="n1"), ("record", {"item": "n1", "label": "bug"})),
    (done(("n1", "bug")), ("read", {"item": "n2"})),
    (done(("n1", "bug"), ("n2", "praise"), ("n3", "bug")), "bug: 2, praise: 1"),
    # a result that failed is tried again, three times; then the item is passed over
    (used(talk(), "read", "busy", True, item="n1"), ("read", {"item": "n1"})),
    (used(used(used(talk(), "read", "x", True, item="n1"), "read", "x", True, item="n1"), "read", "x", True, item="n1"),
     ("read", {"item": "n2"})),
    # it goes on after what it dealt with last: what was passed over stays undone
    (done(("n2", "praise")), ("read", {"item": "n3"})),
    (done(("n2", "praise"), ("n3", "bug")), "bug: 1, praise: 1"),
    # what somebody wrote down counts as done
    (talk(TASK + "\n\nDone so far:\n- n1: bug\n- n2: praise"), ("read", {"item": "n3"})),
    # asked for, it writes down what is done
    (done(("n1", "bug"), ("n2", "praise")).said("Write down what is done so far, a line each: item: label"),
     "n1: bug\nn2: praise"),
]  # fmt: skip


@pytest.mark.parametrize(("conversation", "expected"), STEPS)
def test_the_next_step_is_read_off_the_conversation(conversation: Conversation, expected: Any) -> None:
    assert right(conversation) == expected


def test_without_the_tool_or_the_steps_there_is_no_telling() -> None:
    assert right(talk(tools=(RECORD,))) == "There is no tool read."
    assert act(scene(talk("Read all of it."))) is None
    assert act(scene(talk(TASK.replace("Items: n1, n2, n3", "")))) is not None  # steps without items: none is taken
    assert right(talk(TASK.replace("Items: n1, n2, n3", ""))) == "done"


def test_a_judgement_needs_the_text_that_was_read() -> None:
    """The label follows what the tool said, whatever it said: the reasoner has no other source."""
    for text, label in ((NOTES["n1"], "bug"), (NOTES["n2"], "praise")):
        assert right(used(talk(), "read", text, item="n1")) == ("record", {"item": "n1", "label": label})


def test_it_can_be_wrong_as_such_loops_are() -> None:
    conversation = used(
        done(("n1", "bug"), conversation=talk(tools=(READ, RECORD, OTHER))), "read", "praise", item="n2"
    )
    intent = act(scene(conversation))
    assert intent is not None
    assert intent.right == ("", "record", {"item": "n2", "label": "praise"})
    wrong = {(deed.name or deed.text): deed.given for deed in intent.wrong}
    assert wrong["erase"] == {"item": "n2"}  # a tool that is not the one
    assert ("", "record", {"item": "n2", "label": "bug"}) in intent.wrong  # a wrong argument
    assert ("", "read", {"item": "n3"}) in intent.wrong  # this item is passed over
    assert ("", "record", {"item": "n1", "label": "bug"}) in intent.wrong  # one is done twice
    assert wrong["bug: 1, praise: 0"] == {}  # an end too early
    assert intent.rambling == ("I will call record for n2 now.", "", {})


def test_steps_with_given_arguments_go_on_until_their_tool_says_so() -> None:
    task = (
        'Do these steps:\n1. call control with {"command": "push"}\n'
        '2. call control with {"command": "next"}, until it says "no task is left"'
    )
    control = ToolDef("control")
    conversation = talk(task, (control,))
    assert right(conversation) == ("control", {"command": "push"})
    conversation = used(conversation, "control", "2 tasks", command="push")
    for text in ("task 1: bug", "task 2: praise"):
        assert right(conversation) == ("control", {"command": "next"})
        conversation = used(conversation, "control", text, command="next")
    assert right(used(conversation, "control", "no task is left: bug 1", command="next")) == "no task is left: bug 1"


def test_one_tool_may_do_the_work_of_others() -> None:
    meta = ToolDef(
        "do", "Do an action. read: its text. record: with label: bug|praise.",
        {"type": "object", "properties": {"action": {"enum": ["read", "record"]}, "arguments": {"type": "object"}}},
    )  # fmt: skip
    conversation = talk(tools=(meta,))
    assert right(conversation) == ("do", {"action": "read", "arguments": {"item": "n1"}})
    conversation = used(conversation, "do", NOTES["n1"], action="read", arguments={"item": "n1"})
    given = {"action": "record", "arguments": {"item": "n1", "label": "bug"}}
    assert right(conversation) == ("do", given)
    intent = act(scene(conversation))
    assert intent is not None and ("", "do", {**given, "action": "read"}) in intent.wrong
    assert ("", "do", {**given, "arguments": {"item": "n1", "label": "praise"}}) in intent.wrong
    assert ("", "do", {**given, "arguments": {"item": "n2", "label": "bug"}}) in intent.wrong


# ------------------------------------------------------------------------------------------------ at the provider


def turned(provider: SimulatedProvider, conversation: Conversation, tokens: int = 200) -> Said:
    outcome = provider.decide(request_body(conversation, "sim", tokens), 0.0)
    assert outcome.answer is not None, outcome.refusal
    return as_said(Reply(msgspec.json.encode(outcome.message()), outcome.answer.stop_reason, "sim", Usage()))


def test_the_provider_answers_with_blocks() -> None:
    provider = SimulatedProvider(SimulatorSettings(error=0))
    answer = turned(provider, talk())
    (use,) = answer.uses
    assert (answer.stop_reason, answer.text, use.name, use.input) == ("tool_use", "", "read", {"item": "n1"})
    assert turned(provider, done(("n1", "bug"), ("n2", "praise"), ("n3", "bug"))) == Said(
        (TextBlock("bug: 2, praise: 1"),), "end_turn"
    )
    assert provider.stats()["skills"] == {"acts": 2}
    with pytest.raises(cortex.Malformed, match="cut within"):
        turned(provider, talk(), tokens=2)


def test_errors_are_drawn_at_the_stated_share_and_tools_count_as_parts() -> None:
    exact, wrong = SimulatedProvider(SimulatorSettings(error=0)), SimulatedProvider(SimulatorSettings(error=1))
    assert turned(exact, talk()) != turned(wrong, talk())
    conversation, many = talk(), talk(tools=(READ, RECORD, *(ToolDef(f"t{at}") for at in range(500))))
    shares = []
    for each in (conversation, many):
        provider = SimulatedProvider(SimulatorSettings(seed=3))
        right_one = turned(exact, each).blocks[0]
        parts = [turned(provider, each).blocks for _ in range(400)]
        kept = [blocks for blocks in parts if isinstance(blocks[0], ToolUse) and isinstance(right_one, ToolUse)
                and (blocks[0].name, blocks[0].input) == (right_one.name, right_one.input)]  # fmt: skip
        shares.append(1 - len(kept) / 400)
    assert shares[0] < 0.03 < 0.15 < shares[1]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([{"type": "text", "text": "so"}], "`tool_use` ids were found without `tool_result` blocks"),
        ([{"type": "tool_result", "tool_use_id": "other", "content": "x"}], "`tool_use` ids were found without"),
    ],
)
def test_unpaired_uses_are_refused_in_the_providers_words(content: Any, told: str) -> None:
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": content},
    ]
    body = msgspec.json.encode({"model": "m", "max_tokens": 5, "messages": turns})
    with pytest.raises(BadRequest, match=told):
        read(body)
    orphan = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "o", "content": "x"}]}]
    with pytest.raises(BadRequest, match="unexpected `tool_use_id`"):
        read(msgspec.json.encode({"model": "m", "max_tokens": 5, "messages": orphan}))


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        (5, "tools: Input should be a valid list"), ({"a": 1}, "tools: Input should be a valid list"),
        (["look"], "tools.0: Input should be an object"),
        ([{"name": "a", "input_schema": {}}] * 2, "tools: Tool names must be unique."),
    ],
)  # fmt: skip
def test_tools_that_are_none_are_refused_in_the_providers_words(tools: Any, told: str) -> None:
    with pytest.raises(BadRequest, match=told):
        read(
            msgspec.json.encode(
                {"model": "m", "max_tokens": 5, "tools": tools, "messages": [{"role": "user", "content": "x"}]}
            )
        )


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": 3},
        {"properties": {"item": True}, "required": 4},
        {"properties": {"item": {"enum": 7}, "label": {"enum": [1]}}},
    ],
)
def test_strange_schemas_break_nothing(schema: Any) -> None:
    strange = ToolDef("read", "", schema)
    assert right(talk(tools=(strange, ToolDef("record", "label: bug|praise", schema))))[0] == "read"


# ------------------------------------------------------------------------------------------------ from a flow


@cortex.flow
async def counted(ctx: cortex.Context) -> str:
    conversation = talk()
    while True:
        answer = await ctx.ask(conversation)
        if not answer.uses:
            return answer.text
        results = [
            cortex.ToolResult(use.id, await ctx.run(read_note, use.input["item"]) if use.name == "read" else "recorded")
            for use in answer.uses
        ]
        conversation = conversation.replied(answer, results)


def test_a_flow_is_an_ordinary_tool_loop(tmp_path: Any) -> None:
    model = SimulatedModel(SimulatorSettings(error=0))
    ran = cortex.run(counted(), model=model, cluster="inline", state=str(tmp_path), progress=False)
    assert ran.answer == "bug: 2, praise: 1"


async def test_over_http_whole_and_streamed() -> None:
    server = await serve(SimulatorSettings(error=0))
    client = anthropic.AsyncAnthropic(api_key="sk-test", base_url=server.url, max_retries=0, timeout=PATIENCE_S)
    asked: Any = used(talk(), "read", NOTES["n1"], item="n1").fields()
    try:
        message = await client.messages.create(model="sim", max_tokens=99, **asked)
        async with client.messages.stream(model="sim", max_tokens=99, **asked) as stream:
            streamed = await stream.get_final_message()
    finally:
        await client.close()
        await server.close()
    for each in (message, streamed):
        (block,) = each.content
        assert each.stop_reason == "tool_use" and block.type == "tool_use" and block.id.startswith("toolu_")
        assert (block.name, block.input) == ("record", {"item": "n1", "label": "bug"})
