"""Thinking of models whose provider switches it by a field of its own, above all DeepSeek.

https://api-docs.deepseek.com/guides/thinking_mode: a model thinks unless ``{"thinking": {"type": "disabled"}}`` stands
beside the effort, which has no ``none``. What a model that thinks refuses, with status 400:

- A forced tool: "Thinking mode does not support this tool_choice" (deepseek-ai/DeepSeek-V3#1376, with the switch as
  its remedy), "The tool_choice parameter does not support being set to required or object in thinking mode" (Qwen,
  QwenLM/qwen-code#7659). So a forced tool switches thinking off, unless the request asks for thinking or an effort;
  then and elsewhere the choice is left to the model, once it was refused. A tool beside thinking that is off stays
  forced, unless that is refused too.
- A conversation without the thoughts of its earlier turns: "The `reasoning_content` in the thinking mode must be passed
  back to the API." (anomalyco/opencode#24722), "Missing `reasoning_content` field in the assistant message at message
  index 2." (continuedev/continue#10193), "thinking is enabled but reasoning_content is missing in assistant tool call
  message at index 2" (Kimi, continuedev/continue#11600). An empty one is taken (continuedev/continue#11285).

Others refuse thoughts ("property 'reasoning_content' is unsupported", Groq and Cerebras, janhq/jan#8136), so they are
given back to DeepSeek, and to a server that misses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from actors.providers.client.canonical_request import FieldTranslator, Turn, effort_of
from policies.failures.failure import Failure
from policies.failures.told_retry import refuses_request

THOUGHTS_FIELD: Final = "reasoning_content"
SWITCH: Final = "thinking"
_OFF: Final = {SWITCH: {"type": "disabled"}}
_OFF_JSON: Final = msgspec.json.encode(_OFF[SWITCH])
_ON: Final = {SWITCH: {"type": "enabled"}}
_UNFORCED: Final = (b'"auto"', b'"none"')
_NO_FORCE: Final = re.compile(
    r"\bdoes not support this tool_choice\b|\btool_choice\b.{1,80}\bin thinking mode\b", re.IGNORECASE
)
_MISSED: Final = re.compile(
    r"\breasoning_content\b.{1,40}\b(?:must be passed back|is missing|is required)\b"
    r"|\bmissing\b.{1,10}\breasoning_content\b",
    re.IGNORECASE,
)


class SwitchedTranslator(FieldTranslator):
    """Translator of the fields of a provider with such a switch."""

    def fields(self, given: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """Return the fields that canonical fields become: thinking is off beside a forced tool, unless they ask for
        thinking or an effort. Raises Untranslatable."""
        made = super().fields(given)
        if is_forced(made.get("tool_choice")) and "reasoning_effort" not in made and SWITCH not in made:
            made[SWITCH] = msgspec.Raw(_OFF_JSON)
        return made


def switched_effort(effort: Any) -> dict[str, Any]:
    """Return the fields of an effort: ``none`` switches thinking off."""
    return _OFF if effort == "none" else {"reasoning_effort": effort}


def switched_thinking(thinking: Mapping[str, Any], api: str) -> dict[str, Any]:
    """Return the fields of a canonical ``thinking``. Raises Untranslatable for a budget. ``api``: name of the form for
    people."""
    return _OFF if effort_of(thinking, api) == "none" else _ON


def is_forced(choice: Any) -> bool:
    """Return whether a choice of tools, as JSON, forces the model to use one."""
    return isinstance(choice, msgspec.Raw) and bytes(choice) not in _UNFORCED


def is_off(made: Mapping[str, Any]) -> bool:
    """Return whether the fields of a request switch thinking off."""
    return bytes(made.get(SWITCH, b"")) == _OFF_JSON


def refuses_force(outcome: Failure) -> bool:
    """Return whether a request was refused since a model that thinks cannot be forced to use a tool."""
    return refuses_request(outcome) and _NO_FORCE.search(outcome.message) is not None


def misses_thoughts(outcome: Failure) -> bool:
    """Return whether a request was refused since it lacks the thoughts of earlier turns."""
    return refuses_request(outcome) and _MISSED.search(outcome.message) is not None


def thoughts_in(blocks: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the field that gives back the thoughts of a turn of the model's; an empty one where it has none."""
    return {THOUGHTS_FIELD: "".join(block.get("thinking") or "" for block in blocks if block.get("type") == "thinking")}


def said_in_words(turn: Turn) -> dict[str, Any]:
    """Return the message of a turn of the model's that is a text."""
    return {"role": turn.role, "content": turn.content, THOUGHTS_FIELD: ""}
