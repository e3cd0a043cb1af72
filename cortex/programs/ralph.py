"""``ralph``: work on a folder in rounds, each in a fresh context, until a check written in code passes.

The loop that feeds a model the same task again and again, in a clean window, while the files carry what was done: state
outside the model, compaction taken to its end. Each round is one bounded call. It sees the task, a bounded view of the
folder and what the check said; it answers with edits; a worker applies them and runs the check. The model does not say
when it is over: the check does. Whether it gets anywhere is judged by the folder and the check, never by its words.

The folder is kept before a round and put back before the same round is made again, so that a crash leaves no half of
one. It must be where the workers are: on this machine (``--cluster inline`` or ``local``), or on a disk they all share.
Where the account's quota is used up the job pauses, as every job does; ``--wait-blocked 12h`` has it wait, with a probe
now and then, and go on by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from cortex.programs.parts.edits import FORM, edits_of
from cortex.state.changes import Ask, Change, Emit, Fail, Log, Resolve, RunTool
from cortex.state.program import Program, offered
from cortex.state.state import Goal, Item, State
from cortex.values.prompt import Part, Prompt, Role, Rule
from cortex.values.reply import Reply
from policies.decisions.progress import ProgressSoFar, RoundFacts, and_now, progressed
from policies.decisions.stagnation import StagnationPolicy, StagnationStep, next_step
from policies.failures.failure import Failure, FailureKind

SYSTEM = (
    "You work on a folder in rounds. Every round begins fresh: you remember nothing of the rounds before, and what they"
    " did is in the folder. Do a part of the task that you can do well now. A check written in code decides when the"
    " work is over; you cannot end it."
)
ASK = "Give the edits of this round."
REFRAMED = (
    "The last rounds got nowhere: by the check nothing is better than before. Do not go on in the same way. Take one"
    " single thing that the check names, look at the files for why it fails, and do it differently."
)
SAMPLES_A_ROUND = 100
"""Room for replies that are discarded: the samples of two rounds are never the same."""
NOTES_MAX = 1_000

_ROUND = ("ask", "apply")


class WorkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How the work stands, before a round."""

    folder: str
    number: int
    """Of the folder's snapshot."""
    round: int = 1
    quiet: int = 0
    reframed: int = 0
    reached: ProgressSoFar = ProgressSoFar()
    note: str = ""
    """What became of the last answer, where it was not applied."""
    check: dict[str, Any] = {}
    view: dict[str, Any] = {}


@offered(repeatable=True)
def folder_opened(
    folder: str, task: str, check: str, check_timeout_s: float, show: list[str], view_bytes: int
) -> dict[str, Any]:
    """See ``actors.workspace``."""
    raise NotImplementedError


@offered(repeatable=True)
def folder_round(
    folder: str, number: int, edits: list[dict[str, Any]], task: str, check: str, check_timeout_s: float,
    show: list[str], protect: list[str] | None, view_bytes: int,
) -> dict[str, Any]:  # fmt: skip
    """See ``actors.workspace``."""
    raise NotImplementedError


@offered(repeatable=True)
def folder_closed(folder: str) -> None:
    """See ``actors.workspace``."""
    raise NotImplementedError


class Ralph(Program, frozen=True):
    """Work on ``folder`` by ``task`` until ``check`` passes: a command line run in it, or ``file.py:function``.

    A function gets the folder's path and returns what is left to do (a number or a list; True, None, 0, [] pass). Files
    that match ``protect`` (the check's own, unless you say) the model cannot change; those that match ``show`` it
    always sees. After ``quiet_rounds`` rounds without progress the task is framed differently, ``reframes`` times, and
    then the work ends, stagnated. The check runs what the model wrote: give it no more rights than you would give the
    model.
    """

    name: ClassVar[str] = "ralph"
    tools: ClassVar[Mapping[str, Any]] = {each.__name__: each for each in (folder_opened, folder_round, folder_closed)}
    keeps: ClassVar[bool] = False
    rows_are_goals: ClassVar[bool] = False

    folder: str
    task: str
    check: str
    rounds: int = 50
    quiet_rounds: int = 3
    reframes: int = 1
    check_timeout_s: float = 300.0
    show: tuple[str, ...] = ()
    protect: tuple[str, ...] | None = None
    """None: the check's own file, where the command is plainly the run of one (``python3 check.py``)."""
    view_bytes: int = 24_000
    output_tokens_max: int = 4_096

    def begin(self, k: State) -> Iterable[Change]:
        """Look at the folder as it is. Raises ``ValueError`` for bounds that make no sense."""
        StagnationPolicy(self.quiet_rounds, self.reframes)
        for name in ("rounds", "view_bytes", "output_tokens_max", "check_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above zero, not {getattr(self, name)}")
        ceiling_s = k.terms.limits.timeout.ceiling_s / 2
        if self.check_timeout_s > ceiling_s:
            raise ValueError(f"check_timeout_s must be at most {ceiling_s:g}, not {self.check_timeout_s:g}")
        for name in ("folder", "task", "check"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty")
        yield Goal("open")

    # -- select --------------------------------------------------------------------------------------------------------

    def select(self, k: State) -> Iterable[Ask | Change]:
        """The one thing that is next: look, ask, apply and check, or leave."""
        for goal in k.open():
            if goal.kind == "ask":
                standing = _standing(goal)
                sample = str(standing.round * SAMPLES_A_ROUND + goal.resamples)
                yield Ask(goal, self.prompt(standing, goal.refused), None, self.output_tokens_max, sample=sample)
            elif goal.kind == "open":
                yield RunTool(goal, "folder_opened", {"folder": self.folder, **self._told()})
            elif goal.kind == "apply":
                standing = _standing(goal)
                where = {"folder": standing.folder, "number": standing.number, "edits": goal.value["edits"]}
                protect = None if self.protect is None else list(self.protect)
                yield RunTool(goal, "folder_round", {**where, "protect": protect, **self._told()})
            elif goal.kind == "leave":
                yield RunTool(goal, "folder_closed", {"folder": goal.value["folder"]})

    def _told(self) -> dict[str, Any]:
        return {
            "task": self.task, "check": self.check, "check_timeout_s": self.check_timeout_s, "show": list(self.show),
            "view_bytes": self.view_bytes,
        }  # fmt: skip

    def prompt(self, standing: WorkProgress, refused: str = "") -> Prompt:
        """The task, the folder, what the check said. What does not fit is cut, the least wanted contents first."""
        view, check = standing.view, standing.check
        names = "\n".join(f"{path} ({about})" for path, about in view["files"])
        more = f"\n[and {view['more']} more]" if view["more"] else ""
        parts = [
            Part(Role.SYSTEM, f"{SYSTEM}\n\n{FORM}"),
            Part(Role.GOAL, self.task, title="Task"),
            Part(Role.DOCUMENT, (names or "[it is empty]") + more, 10, Rule.CUT, "Folder"),
        ]
        for place, (path, text, whole) in enumerate(view["texts"]):
            title = f"File {path}" + ("" if whole else " (its beginning)")
            parts.append(Part(Role.DOCUMENT, text.rstrip("\n"), -place, Rule.CUT, title))
        said = check["said"] or f"[it says nothing; exit code {check['exit']}]"
        parts.append(Part(Role.ANNOTATION, said, 20, Rule.CUT, f"Check: {self.check}"))
        if standing.note:
            parts.append(Part(Role.ANNOTATION, standing.note, 30, Rule.DROP, "Last round"))
        if standing.reframed:
            parts.append(Part(Role.ANNOTATION, REFRAMED))
        if refused:
            parts.append(Part(Role.ANNOTATION, f"Your last answer was refused: {refused}"))
        constructor = "reframed" if standing.reframed else "round"
        return Prompt(constructor, (*parts, Part(Role.GOAL, ASK)))

    # -- absorb --------------------------------------------------------------------------------------------------------

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        """The answer's edits, for a worker. ``Malformed``, where it holds anything else, asks for another."""
        edits = edits_of(reply.text)
        yield Resolve(goal)
        yield Goal("apply", {**goal.value, "edits": edits})

    def absorbed(self, k: State, goal: Goal, value: Any) -> Iterable[Change]:
        """The folder after it was opened, or after a round; or that it was left."""
        yield Resolve(goal)
        if goal.kind == "leave":
            yield from _told_end(goal.value["answer"])
            return
        found = RoundFacts(value["view"]["digest"], value["check"]["found"], value["check"]["failing"])
        seen = {"folder": value["folder"], "number": value["number"], "check": value["check"], "view": value["view"]}
        if goal.kind == "open":
            standing = WorkProgress(**seen, reached=and_now(ProgressSoFar(), found))
            yield from self._end(standing, "passed", 0) if value["check"]["passed"] else [_asked(standing)]
            return
        before = _standing(goal)
        got_on = progressed(before.reached, found)
        note = _noted(value["refused"], goal.value["edits"])
        quiet, reframed = (0, 0) if got_on else (before.quiet + 1, before.reframed)
        reached = and_now(before.reached, found)
        standing = msgspec.structs.replace(before, **seen, reached=reached, quiet=quiet, reframed=reframed, note=note)
        left = "" if found.failing is None else f", {found.failing} left"
        yield Log(f"round {before.round}: {'passed' if value['check']['passed'] else 'not passed'}{left}")
        yield from self._after(standing)

    def failed(self, k: State, goal: Goal, failure: Failure) -> Iterable[Change]:
        """A round without a usable answer is a round without progress. A folder that cannot be worked on is the end."""
        if goal.kind == "ask" and failure.kind in (FailureKind.MALFORMED, FailureKind.REFUSED):
            yield Resolve(goal)
            standing = _standing(goal)
            note = f"No answer was usable: {failure.message}"[:NOTES_MAX]
            yield from self._after(msgspec.structs.replace(standing, quiet=standing.quiet + 1, note=note))
            return
        yield Fail(goal, failure.message, failure.kind)
        if goal.kind == "leave":
            yield from _told_end(goal.value["answer"])
            return
        folder, rounds = self.folder, 0
        if goal.kind in _ROUND:
            standing = _standing(goal)
            folder, rounds = standing.folder, standing.round - 1
        said = {"rounds": rounds, "failing": None, "check": failure.message}
        yield Goal("leave", {"folder": folder, "answer": {"passed": False, "ended": failure.kind, **said}})

    def _after(self, standing: WorkProgress) -> Iterable[Change]:
        """What follows a round: the end, or the next one, framed as the last ones deserve."""
        if standing.check["passed"]:
            yield from self._end(standing, "passed", standing.round)
            return
        step = next_step(standing.quiet, standing.reframed, StagnationPolicy(self.quiet_rounds, self.reframes))
        if step == StagnationStep.STOP:
            yield from self._end(standing, "stagnated", standing.round)
        elif standing.round >= self.rounds:
            yield from self._end(standing, "rounds", standing.round)
        else:
            if step == StagnationStep.REFRAME:
                standing = msgspec.structs.replace(standing, quiet=0, reframed=standing.reframed + 1)
            yield _asked(msgspec.structs.replace(standing, round=standing.round + 1))

    def _end(self, standing: WorkProgress, how: str, rounds: int) -> Iterable[Change]:
        answer = {
            "passed": how == "passed", "ended": how, "rounds": rounds, "failing": standing.check["failing"],
            "check": standing.check["said"],
        }  # fmt: skip
        yield Goal("leave", {"folder": standing.folder, "answer": answer})

    def answer(self, k: State) -> Any:
        """``passed``, how it ``ended`` (passed, stagnated, rounds), after how many ``rounds``, what the check said."""
        return next((item.value for item in k.items_of("answer")), None)


def _asked(standing: WorkProgress) -> Goal:
    return Goal("ask", {"standing": msgspec.to_builtins(standing)})


def _standing(goal: Goal) -> WorkProgress:
    return msgspec.convert(goal.value["standing"], WorkProgress)


def _told_end(answer: dict[str, Any]) -> Iterable[Change]:
    yield Item("answer", answer)
    yield Emit(answer, failed=not answer["passed"])


def _noted(refused: str, edits: list[dict[str, Any]]) -> str:
    if refused:
        return f"Its edits were refused, all of them: {refused}"[:NOTES_MAX]
    return "" if edits else "It said that nothing is left to do. The check does not pass."
