"""Bounded conversations with tools: the prompt of one call of a messages-and-tools loop.

    talk = Conversation("loop", tools=(ToolDef.of(read),)).said("Read a.txt and sum it up.")
    reply = await ctx.ask(talk)             # a Said: .text, .uses
    talk = talk.replied(reply, [ToolResult(reply.uses[0].id, "the file's text")])

A ``Conversation`` can be used wherever a ``Prompt`` can, and is bounded in the same way: its tokens are counted over
system text, tools and all turns; its parts are its blocks and its tools. It is an immutable value; additions return a
longer one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

import msgspec

from cortex.values.prompt import DoesNotFit, Rule
from cortex.values.reply import Block, Said, TextBlock, ToolUse

LEFT_OUT = "(left out: this conversation has grown too long)"
"""Text in place of a dropped tool result: the tool use that it answers stays, since each use needs a result."""


class ToolDef(msgspec.Struct, frozen=True):
    """Tool as the model sees it: ``schema`` is the JSON schema of its input."""

    name: str
    description: str = ""
    """Description for the model."""
    schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the tool's input."""

    @classmethod
    def of(cls, function: Callable[..., Any], hidden: Iterable[str] = ()) -> ToolDef:
        """Define a tool from a function: its name, its docstring's first paragraph, a schema of its parameters' types.

        ``hidden`` parameters are not shown to the model, nor is ``idempotency_key``, which the worker passes. Raises
        ``TypeError`` for a type without a schema.
        """
        hints = get_type_hints(function)
        fields: list[Any] = []
        for name, parameter in inspect.signature(function).parameters.items():
            if name in ("idempotency_key", *hidden):
                continue
            kind = hints.get(name, Any)
            fields.append((name, kind) if parameter.default is parameter.empty else (name, kind, parameter.default))
        made = msgspec.json.schema(msgspec.defstruct(function.__name__, fields, kw_only=True))
        schema = {**made["$defs"].pop(function.__name__), **({"$defs": made["$defs"]} if made["$defs"] else {})}
        schema.pop("title", None)
        text = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
        return cls(function.__name__, " ".join(text.split()), schema)

    def fields(self) -> dict[str, Any]:
        """Return the definition in the canonical form."""
        return {"name": self.name, "description": self.description, "input_schema": self.schema}


class ToolResult(msgspec.Struct, frozen=True, tag="tool_result", tag_field="type"):
    """Result of one tool use; ``failed``: the tool could not be run."""

    use: str
    """Id of the tool use."""
    text: str
    """Result, as text for the model."""
    failed: bool = False
    """True if the tool could not be run."""


class ConversationTurn(msgspec.Struct, frozen=True):
    """Turn of one side: ``user`` (text, tool results) or ``assistant`` (text, tool uses)."""

    role: str
    blocks: tuple[Block | ToolResult, ...]


class Conversation(msgspec.Struct, frozen=True):
    """Turns, the tools available to the next turn, and a system text.

    ``results`` is the treatment of tool results, oldest first, if the conversation does not fit: keep, cut, or drop
    their text. ``choice`` is the request's ``tool_choice``, if given.
    """

    constructor: str
    """Name of the framing."""
    turns: tuple[ConversationTurn, ...] = ()
    """Turns so far, alternating between user and assistant."""
    tools: tuple[ToolDef, ...] = ()
    """Tools that the next turn may use."""
    system: str = ""
    """System text; empty: none."""
    results: Rule = Rule.KEEP
    """Treatment of tool results if the conversation does not fit."""
    choice: dict[str, Any] | None = None
    """``tool_choice`` of the request; None: not given."""
    left_out: tuple[str, ...] = ()
    """Ids of the uses whose results were dropped or cut to fit."""

    # -- additions
    # ------------------------------------------------------------------------------------------------------

    def said(self, text: str) -> Conversation:
        """Return this conversation with a user text, added to the last turn if that is the user's."""
        return self._user((TextBlock(text),))

    def replied(self, reply: Said, results: Iterable[ToolResult] = ()) -> Conversation:
        """Return this conversation with the model's reply, and the result of every tool use in it.

        Raises ``ValueError`` if a use has no result, or a result no use: no provider accepts that.
        """
        given = {result.use: result for result in results}
        uses = [use.id for use in reply.uses]
        if sorted(given) != sorted(uses):
            raise ValueError(f"uses {uses} and results {list(given)} do not match")
        with_reply = msgspec.structs.replace(self, turns=(*self.turns, ConversationTurn("assistant", reply.blocks)))
        return with_reply._user(tuple(given[use] for use in uses)) if uses else with_reply

    def noted(self, text: str, title: str) -> Conversation:
        """Return this conversation with a remark at its end; ``title`` names the remark in the constructor's name."""
        return msgspec.structs.replace(self.said(text), constructor=f"{self.constructor}+{title}")

    def _user(self, blocks: tuple[Block | ToolResult, ...]) -> Conversation:
        turns = self.turns
        if turns and turns[-1].role == "user":
            turns, blocks = turns[:-1], (*turns[-1].blocks, *blocks)
        return msgspec.structs.replace(self, turns=(*turns, ConversationTurn("user", blocks)))

    # -- use as a prompt
    # --------------------------------------------------------------------------------------------------

    @property
    def parts(self) -> tuple[Block | ToolResult | ToolDef, ...]:
        """Parts that are counted: tools and blocks."""
        return (*self.tools, *(block for turn in self.turns for block in turn.blocks))

    def text(self) -> str:
        """Return all text of the conversation: the text whose tokens are counted."""
        tools = (_json(tool.fields()) for tool in self.tools)
        lines = (_spoken(block) for turn in self.turns for block in turn.blocks)
        return "\n\n".join(each for each in (self.system, *tools, *lines) if each)

    def preview(self) -> str:
        """Return the text of the last block."""
        return _spoken(self.turns[-1].blocks[-1]) if self.turns and self.turns[-1].blocks else ""

    def fields(self) -> dict[str, Any]:
        """Return the fields of a request in the canonical form."""
        facts: dict[str, Any] = {
            "messages": [{"role": turn.role, "content": [_block(each) for each in turn.blocks]} for turn in self.turns]
        }
        if self.system:
            facts["system"] = self.system
        if self.tools:
            facts["tools"] = [tool.fields() for tool in self.tools]
        if self.choice is not None:
            facts["tool_choice"] = self.choice
        return facts

    def fit(self, tokens_max: int, tokens: Callable[[str], int], parts_max: int = 200) -> Conversation:
        """Return this conversation within ``tokens_max`` tokens (as ``tokens`` counts them) and ``parts_max`` parts.

        Drops or cuts the oldest tool results, if ``results`` permits it; never a turn, since the model would then
        repeat it. Raises ``DoesNotFit`` if the rest is still too large.
        """
        within = self
        oldest = [block.use for block in self.parts if isinstance(block, ToolResult)]
        while tokens(within.text()) > tokens_max and self.results != Rule.KEEP and oldest:
            within = within._shortened(oldest.pop(0), tokens_max, tokens)
        counted = tokens(within.text())
        if counted > tokens_max or len(self.parts) > parts_max:
            raise DoesNotFit(
                f"{self.constructor}: {counted} tokens in {len(self.parts)} parts; at most {tokens_max} in {parts_max}"
            )
        return within

    def _shortened(self, use: str, tokens_max: int, tokens: Callable[[str], int]) -> Conversation:
        """With less of this result: as much as fits, or nothing of it."""
        whole = next(block.text for block in self.parts if isinstance(block, ToolResult) and block.use == use)
        without = self._with_result(use, LEFT_OUT)
        if self.results == Rule.DROP or tokens(without.text()) > tokens_max:
            return without
        low, high = 0, len(whole)
        while low < high:
            middle = (low + high + 1) // 2
            fits = tokens(self._with_result(use, whole[:middle]).text()) <= tokens_max
            low, high = (middle, high) if fits else (low, middle - 1)
        return self._with_result(use, whole[:low] or LEFT_OUT)

    def _with_result(self, use: str, text: str) -> Conversation:
        def changed(block: Block | ToolResult) -> Block | ToolResult:
            mine = isinstance(block, ToolResult) and block.use == use
            return msgspec.structs.replace(block, text=text) if mine else block

        turns = tuple(ConversationTurn(turn.role, tuple(map(changed, turn.blocks))) for turn in self.turns)
        return msgspec.structs.replace(self, turns=turns, left_out=(*self.left_out, use))


def _spoken(block: Block | ToolResult) -> str:
    """Text of a block."""
    if isinstance(block, (TextBlock, ToolResult)):
        return block.text
    return f"{block.name} {_json(block.input)}" if isinstance(block, ToolUse) else _json(block.fields)


def _block(block: Block | ToolResult) -> dict[str, Any]:
    """Block in the canonical form."""
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    if isinstance(block, ToolUse):
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
    if isinstance(block, ToolResult):
        facts: dict[str, Any] = {"type": "tool_result", "tool_use_id": block.use, "content": block.text}
        return {**facts, "is_error": True} if block.failed else facts
    return block.fields


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
