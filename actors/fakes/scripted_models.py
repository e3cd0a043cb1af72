"""Models for tests of programs: replies from a script, from a function, or from the record of a job.

A scripted model lives in the test's process, so its job runs inline. The job's journal is in a temporary folder, unless
the caller names one. A prompt without a reply, or an exception of a function, ends the job and is raised to its caller.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from actors.common.errors import UserError
from actors.journal.journal import StateFolder
from cortex.calls.request import question_hash
from cortex.state import events
from cortex.values.limits import Route
from cortex.values.plain_values import to_plain
from cortex.values.prompt import with_model
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure, FailureKind

GIVEN = "given"
"""Model name in requests of a job that was given a model object."""
SHOWN_MAX = 400
_STOP = Failure(FailureKind.BLOCKED, "the test's own model does not know what to say", sent=False)
"""Failure of kind BLOCKED, so that nothing is asked again while the job ends."""


class NoReply(UserError, AssertionError):
    """A test model has no reply to a prompt. The message is one line that shows the prompt."""

    __module__ = "cortex.testing"  # the public module of this class


class Asked(msgspec.Struct, frozen=True):
    """Call that a test model got."""

    prompt: str
    """Text of the messages, after the system prompt if there is one."""
    model: str
    """Model name in the request: ``given`` for the job's own model object, the role's name for that of a role."""
    request: dict[str, Any]
    """Request body, in the Messages form."""
    reply: str = ""
    """Text of the reply; empty for a failure."""

    @property
    def role(self) -> str:
        """Role that was asked; empty for the job's own model."""
        return "" if self.model == GIVEN else self.model


class _FakeModel:
    """Base class of the test models. ``calls``: calls that the model got, in order."""

    scripted = True
    """True: a job with such a model keeps its journal in a temporary folder."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.rate = None
        self.calls: list[Asked] = []
        self.trouble: BaseException | None = None
        """First error, which the caller of the job must get."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {len(self.calls)} calls>"

    @property
    def prompts(self) -> list[str]:
        """Prompts of the calls, in order."""
        return [call.prompt for call in self.calls]

    async def call(
        self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Callable[[int], None] | None = None
    ) -> Reply | Failure:
        """Answer one request."""
        if self.trouble is not None:
            return _STOP
        request = msgspec.json.decode(body, type=dict[str, Any])
        asked = Asked(_text(request), str(request.get("model", "")), request)
        try:
            failure = await self._answer(asked, body)
        except Exception as error:  # a function of a test's author may raise anything
            self.calls.append(asked)
            self.trouble = error
            return _STOP
        if isinstance(failure, Failure):
            self.calls.append(asked)
            return failure
        reply = failure if isinstance(failure, Reply) else _reply(failure, asked)
        self.calls.append(msgspec.structs.replace(asked, reply=reply.text))
        return reply

    async def _answer(self, asked: Asked, body: bytes) -> str | Reply | Failure:
        raise NotImplementedError

    async def count_tokens(self, body: bytes) -> int | None:
        """Return None: a test model counts no tokens."""
        return None

    async def close(self) -> None:
        """Release nothing."""


class ScriptedModel(_FakeModel):
    """Model that replies from a script.

    ``script``: a dict from patterns to replies, of which the first pattern found in the prompt counts (a text anywhere
    in the prompt, or a compiled regular expression; ``""`` matches all prompts); a list of replies in order, whatever
    is asked; or a function, async or not, of the prompt, or of the prompt and the whole request. A reply is a text, a
    value that is sent as JSON (a dict, a list, a number, a struct, a pydantic model), a ``FailureKind`` or ``Failure``,
    a function as above, or a list of these, used one after the other.

    ``endpoint``: name of the model's endpoint, by which replies are reused in a state folder that is kept.
    """

    def __init__(self, script: Any = (), *, endpoint: str = "scripted") -> None:
        super().__init__(endpoint)
        self._entries: list[_ScriptEntry] = []
        if isinstance(script, Mapping):
            for pattern, reply in script.items():
                self.on(pattern, reply)
        elif callable(script):
            self._entries.append(_ScriptEntry("", script, ""))
        elif isinstance(script, Sequence) and not isinstance(script, str | bytes):
            self._entries += [_ScriptEntry("", list(script), "")] if script else []
        else:
            raise TypeError(f"a script is a dict of patterns, a list of replies or a function, not {script!r:.60}")

    def on(self, pattern: str | re.Pattern[str], *replies: Any, role: str = "") -> ScriptedModel:
        """Add replies to prompts in which the pattern is found; several replies are used one after the other. Return
        the model.

        ``role``: only for calls of this role. Patterns added before take precedence.
        """
        if not isinstance(pattern, str | re.Pattern):
            raise TypeError(f"a pattern is a text or a compiled regular expression, not {pattern!r:.60}")
        if not replies:
            raise TypeError(f"{pattern!r}: what is said to it?")
        self._entries.append(_ScriptEntry(pattern, replies[0] if len(replies) == 1 else list(replies), role))
        return self

    @property
    def unused(self) -> list[str]:
        """Patterns that no prompt has matched."""
        return [entry.shown for entry in self._entries if not entry.uses]

    async def _answer(self, asked: Asked, body: bytes) -> str | Reply | Failure:
        for entry in self._entries:
            if entry.fits(asked):
                return await _reply_of(entry.next(asked), asked)
        known = ", ".join(entry.shown for entry in self._entries)
        has = f"it has replies to {known}" if known else "it is empty"
        raise NoReply(f"the script has no reply to the prompt {_shown(asked)}; {has}")


class RecordedModel(_FakeModel):
    """Model that replies from the record of a job: its journal and those of its child jobs, by question.

    A repeated question gets the reply to its next sample. ``state``: folder of the journals. Raises ``StoreError`` for
    an unknown job.
    """

    def __init__(self, job: str, *, state: str = ".cortex") -> None:
        super().__init__("recorded")
        self._job = job
        self._replies: dict[bytes, Reply] = {}
        self._samples: dict[str, None] = {}
        self._routes: dict[tuple[str, str], None] = {}
        self._uses: dict[tuple[bytes, str], int] = {}
        folder = StateFolder(state)
        for name in (job, *(each for each in folder.jobs() if each.startswith(f"{job}~"))):
            self._read(folder, name)

    def _read(self, folder: StateFolder, name: str) -> None:
        source = folder.journal(name)
        try:
            for _, turn in source.turns(0):
                for event in (event for batch in turn.batches for event in batch):
                    if isinstance(event, events.Answered | events.ReplyRecalled):
                        self._samples[event.sample] = None
                        if event.reply is not None:
                            self._replies[event.hash] = event.reply
                    elif isinstance(event, events.Opened):
                        self._know(*event.terms.routes)
                    elif isinstance(event, events.LimitsSet):
                        self._know(*(event.fallbacks or ()))
        finally:
            source.close()

    def _know(self, *routes: Route) -> None:
        for route in routes:
            self._routes[route.endpoint, route.model] = None

    async def _answer(self, asked: Asked, body: bytes) -> Reply:
        own = with_model(body, "")
        found = list(self._recorded(body))
        uses = self._uses.get((own, asked.model), 0)
        if uses < len(found):
            self._uses[own, asked.model] = uses + 1
            return found[uses]
        known = f"only {len(found)} replies" if found else "no reply"
        raise NoReply(f"job {self._job} has recorded {known} to the prompt {_shown(asked)}")

    def _recorded(self, body: bytes) -> Iterator[Reply]:
        """Yield the replies to a request, of any model of the job, by sample."""
        samples = sorted(self._samples, key=lambda sample: (not sample.isdecimal(), len(sample), sample))
        seen: set[bytes] = set()
        for endpoint, model in self._routes:
            for request in (with_model(body, model), body):
                for sample in samples:
                    question = question_hash(endpoint, request, sample)
                    if question in self._replies and question not in seen:
                        seen.add(question)
                        yield self._replies[question]


class _ScriptEntry:
    """Entry of a script: a pattern and its replies."""

    def __init__(self, pattern: str | re.Pattern[str], reply: Any, role: str) -> None:
        self._pattern, self._reply, self._role = pattern, reply, role
        self.uses = 0
        where = pattern if isinstance(pattern, str) else pattern.pattern
        self.shown = f"{where!r} of role {role}" if role else repr(where)

    def fits(self, asked: Asked) -> bool:
        if self._role and asked.role != self._role:
            return False
        pattern = self._pattern
        return pattern in asked.prompt if isinstance(pattern, str) else pattern.search(asked.prompt) is not None

    def next(self, asked: Asked) -> Any:
        """Return the next reply. Raises ``NoReply`` if all were used."""
        uses, self.uses = self.uses, self.uses + 1
        if not isinstance(self._reply, list):
            return self._reply
        if uses >= len(self._reply):
            whose = "the script" if self.shown == "''" else f"{self.shown} of the script"
            raise NoReply(f"{whose} has {len(self._reply)} replies, and is asked once more: {_shown(asked)}")
        return self._reply[uses]


async def _reply_of(reply: Any, asked: Asked) -> str | Reply | Failure:
    """Return a reply of a script in the form of a model's reply."""
    if callable(reply) and not isinstance(reply, type):
        reply = reply(*(asked.prompt, asked.request)[: _places(reply)])
        if inspect.isawaitable(reply):
            reply = await reply
    if isinstance(reply, FailureKind):
        return Failure(reply, f"the script says {reply}")
    if isinstance(reply, str | Reply | Failure):
        return reply
    if hasattr(reply, "model_dump_json"):
        return str(reply.model_dump_json())
    try:
        return msgspec.json.encode(to_plain(msgspec.to_builtins(reply))).decode()
    except (TypeError, ValueError) as error:
        raise NoReply(f"{reply!r:.60} is not a valid reply ({error}) to the prompt {_shown(asked)}") from None


def _places(function: Callable[..., Any]) -> int:
    """Return the number of arguments of a script function: 1 (prompt), or 2 (prompt and request)."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return 2 if sum(each.kind in kinds and each.default is each.empty for each in parameters) > 1 else 1


def _reply(text: str, asked: Asked) -> Reply:
    body = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": text}], "model": asked.model}
    usage = Usage(1 + len(asked.prompt) // 4, 1 + len(text) // 4)
    return Reply(msgspec.json.encode(body), "end_turn", asked.model, usage)


def _text(request: Mapping[str, Any]) -> str:
    """Return all texts of a request as one text."""
    parts = [request.get("system"), *(message.get("content") for message in request.get("messages", ()))]
    texts: list[str] = []
    for part in parts:
        blocks = part if isinstance(part, list) else [{"text": part}] if part else []
        texts += [block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)]
    return "\n\n".join(texts)


def _shown(asked: Asked) -> str:
    text = asked.prompt if len(asked.prompt) <= SHOWN_MAX else f"{asked.prompt[: SHOWN_MAX - 1]}…"
    return f"{text!r}{f' of role {asked.role}' if asked.role else ''}"
