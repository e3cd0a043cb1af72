"""Bounded reasoner: reads a request, derives an answer from its text, and errs at a stated rate.

A request that offers tools, and states steps that use them, gets its next step as the answer (``skills.tool_steps``).

The reasoner reads nothing but the request body. It knows no label set, program or method: its skills are a table of
general ways to follow an instruction (``actors.simulator.reasoning.skills``), and every word of an answer is in the
text, but for numbers and the words of JSON.

**Rate of errors**: a function of the text alone, ``error_share``:

    load  = 0.0005 + 0.003 * tokens / 1000 + 0.0004 * parts + 0.005 * max(0, nesting - 2)
    share = min(0.9, 1 - exp(-load))

where *parts* are the text's paragraphs and the tools that it may use, and *nesting* is the deepest nesting of its
brackets, or the longest chain of names of which each is defined by the one before (``t2 = exp(t1)``, a line each).
Longer texts, more parts and deeper structure are harder, as for any bounded reader. A prompt of one short paragraph
errs once in some thousand times, 5,000 tokens in 40 paragraphs three times in a hundred, brackets 100 deep four times
in ten.

**Draw of an error**: by (seed, text, times seen). A repeated question is answered anew, and a run is repeatable. An
error is a wrong answer of the right form; one in four misses the form instead, to test readers of answers.
"""

import math
import re
from typing import Any, Final

import msgspec

from actors.simulator import random_draws, tokenizer
from actors.simulator.conversation import TurnContext
from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.schema_text import inlined, spoken
from actors.simulator.reasoning.skills import SKILLS, Skill, Thought
from actors.simulator.reasoning.skills.tool_steps import PlannedStep, act
from actors.simulator.request import ParsedRequest

LOAD: Final = 0.0005
LOAD_PER_KTOKEN: Final = 0.003
LOAD_PER_PART: Final = 0.0004
LOAD_PER_NESTING: Final = 0.005
NESTING_FREE: Final = 2
SHARE_MAX: Final = 0.9
FORM_SHARE: Final = 0.25
"""Share of the errors that miss the asked form."""

_DEFINED = re.compile(r"^(\w+) = (.+)$", re.MULTILINE)
_NAME = re.compile(r"[^\W\d]\w*")
_NO_BRACKETS = bytes(set(range(256)) - set(b"()[]{}"))


class SimulatedAnswer(msgspec.Struct, frozen=True, gc=False):
    """Answer of the reasoner, within the bounds of the request."""

    text: str
    output_tokens: int
    stop_reason: str
    stop_sequence: str | None
    skill: str
    erred: bool
    tool: str = ""
    """Name of the tool that the answer uses, with its arguments in ``given``."""
    given: dict[str, Any] = msgspec.field(default_factory=dict)
    thinking_tokens: int = 0
    """Tokens of the thinking before it, which are among ``output_tokens``."""


def nesting(text: str) -> int:
    """Return the deepest nesting of brackets of any kind."""
    if not ("(" in text or "[" in text or "{" in text):
        return 0
    depth = deepest = 0
    for sign in text.encode("utf-8", "replace").translate(None, _NO_BRACKETS):
        if sign in b"([{":
            depth += 1
            deepest = max(deepest, depth)
        elif depth:
            depth -= 1
    return deepest


def chained(text: str) -> int:
    """Return the length of the longest chain of definitions: lines ``name = ...`` that use names defined before."""
    longest: dict[str, int] = {}
    if " = " in text:
        for name, answer in _DEFINED.findall(text):
            longest[name] = 1 + max((longest.get(other, 0) for other in _NAME.findall(answer)), default=0)
    return max(longest.values(), default=0)


def error_share(text: str, tokens: int, tools: int = 0) -> float:
    """Return the probability of an error on this text; formula in the module's docstring."""
    parts = text.count("\n\n") + 1 + tools
    load = LOAD + LOAD_PER_KTOKEN * tokens / 1000 + LOAD_PER_PART * parts
    load += LOAD_PER_NESTING * max(0, max(nesting(text), chained(text)) - NESTING_FREE)
    return min(SHARE_MAX, 1 - math.exp(-load))


class Reasoner:
    """Answers requests. Holds a seed, an error rate and skills, and no state of any request but a cache."""

    def __init__(
        self, seed: int = 0, error: float | None = None, skills: tuple[tuple[str, Skill], ...] = SKILLS
    ) -> None:
        """``error``: share of wrong answers for any text; 0 is exact; None (default) is ``error_share``."""
        self._seed = seed
        self._error = error
        self._skills = skills
        self._last: tuple[int, object, ParsedPrompt, str, Thought] | None = None
        """Cache of the last text, whose samples are asked one after another."""
        self._right: tuple[ParsedRequest, SimulatedAnswer] | None = None
        """Cache of the right answer to the last request."""

    def answer(self, ask: ParsedRequest, seen: int) -> SimulatedAnswer:
        """Return the answer to a request whose text was seen ``seen`` times before."""
        if ask.max_tokens == 0:  # the provider then only warms its prompt cache
            return SimulatedAnswer("", 0, "max_tokens", None, "", False)
        if ask.scene is not None and (intent := act(ask.scene)) is not None:
            return self._acted(ask, ask.scene, intent, seen)
        last = self._last
        if last is None or last[0] != ask.text_id or last[1] != ask.schema:
            text, schema = (ask.text, ask.schema) if ask.schema is not None else spoken(ask.text)
            reading = ParsedPrompt(text, ask.system, schema if schema is None else inlined(schema))
            last = self._last = (ask.text_id, ask.schema, reading, *self._thought(reading))
        _, _, reading, skill, thought = last
        share = error_share(ask.text, ask.input_tokens) if self._error is None else self._error
        if share > 0 and random_draws.draw(self._seed, ask.text_id, seen, random_draws.ERROR) < share:
            return self._bounded(self._mistaken(thought, reading, ask, seen), ask, skill, True)
        right = self._right
        if right is None or right[0] is not ask:
            right = self._right = ask, self._bounded(thought.right, ask, skill, False)
        return right[1]

    def _acted(self, ask: ParsedRequest, scene: TurnContext, intent: PlannedStep, seen: int) -> SimulatedAnswer:
        """Return the next turn of a conversation with tools."""
        share = error_share(ask.text, ask.input_tokens, len(scene.offers)) if self._error is None else self._error
        erred = share > 0 and random_draws.draw(self._seed, ask.text_id, seen, random_draws.ERROR) < share
        deed = intent.right
        if erred:
            wrong = [each for each in intent.wrong if each != intent.right]
            if not wrong or random_draws.draw(self._seed, ask.text_id, seen, random_draws.FORM) < FORM_SHARE:
                deed = intent.rambling
            else:
                deed = wrong[int(random_draws.draw(self._seed, ask.text_id, seen, random_draws.CHOICE) * len(wrong))]
        if not deed.name:
            return self._bounded(deed.text, ask, "acts", erred)
        tokens = tokenizer.count(deed.name) + tokenizer.count(msgspec.json.encode(deed.given))
        if tokens > ask.max_tokens:
            return SimulatedAnswer("", ask.max_tokens, "max_tokens", None, "acts", erred, deed.name)
        return SimulatedAnswer("", tokens, "tool_use", None, "acts", erred, deed.name, deed.given)

    def _thought(self, reading: ParsedPrompt) -> tuple[str, Thought]:
        for name, skill in self._skills:
            thought = skill(reading)
            if thought is not None:
                return name, thought
        return "", Thought(reading.text[:200])

    def _mistaken(self, thought: Thought, reading: ParsedPrompt, ask: ParsedRequest, seen: int) -> str:
        at = random_draws.draw(self._seed, ask.text_id, seen, random_draws.FORM)
        wrong = [each for each in thought.wrong if each != thought.right]
        if thought.rambling != "" and not ask.tool and (at < FORM_SHARE or not wrong):
            return thought.rambling or " ".join([thought.right, *reading.sentences[:1]])
        if not wrong:
            return thought.right
        return wrong[int(random_draws.draw(self._seed, ask.text_id, seen, random_draws.CHOICE) * len(wrong))]

    def _bounded(self, text: str, ask: ParsedRequest, skill: str, erred: bool) -> SimulatedAnswer:
        if ask.prefill and text.startswith(ask.prefill):
            text = text[len(ask.prefill) :]
        reason: str = "tool_use" if ask.tool else "end_turn"
        stopped_by: str | None = None
        for stop in ask.stop_sequences:
            at = text.find(stop)
            if at >= 0:
                text, reason, stopped_by = text[:at], "stop_sequence", stop
        tokens = tokenizer.count(text)
        if tokens > ask.max_tokens:
            text, reason, stopped_by = tokenizer.cut(text, ask.max_tokens), "max_tokens", None
            tokens = ask.max_tokens
        return SimulatedAnswer(text, max(1, tokens), reason, stopped_by, skill, erred)
