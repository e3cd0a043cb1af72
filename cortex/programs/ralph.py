"""``ralph``: work on a folder in rounds, each in a fresh context, until a check written in code passes.

The loop gives a model the same task again and again, in an empty context, while the files carry the progress: state
outside the model, the extreme form of compaction. Each round is one bounded call. Its prompt holds the task, a bounded
view of the folder and the output of the check; its answer is a list of edits; a worker applies them and runs the check.
The check, not the model, decides when the work is over. Progress is measured by folder and check, never by the model's
words.

The folder is saved before a round and restored before the same round is repeated, so that a crash leaves no half round.
It must be accessible to the workers: on this machine (``--cluster inline`` or ``local``), or on a shared disk. If the
account's quota is used up the job pauses, as every job does; with ``--wait-blocked 12h`` it waits, probes from time to
time, and continues by itself.
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
from cortex.values.reply import Malformed, Reply, finished
from policies.decisions.progress import ProgressSoFar, RoundFacts, and_now, progressed
from policies.decisions.stagnation import StagnationPolicy, StagnationStep, next_step
from policies.failures.failure import Failure, FailureKind
from policies.failures.timeout import TOOL_S

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
"""Sample numbers reserved for each round, including discarded replies: two rounds never share a sample."""
NOTES_MAX = 1_000
"""Characters of the note about the last round."""

_ROUND = ("ask", "apply")


class WorkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """State of the work before a round."""

    folder: str
    number: int
    """Number of the folder's snapshot."""
    round: int = 1
    quiet: int = 0
    """Consecutive rounds without progress since the last framing."""
    reframed: int = 0
    reached: ProgressSoFar = ProgressSoFar()
    note: str = ""
    """Reason why the last answer was not applied; empty if it was."""
    check: dict[str, Any] = {}
    view: dict[str, Any] = {}


@offered(repeatable=True)
def folder_opened(
    folder: str, task: str, check: str, check_timeout_s: float, show: list[str], view_bytes: int
) -> dict[str, Any]:
    """Open the folder and run the check for the first time (``actors.workspace``)."""
    raise NotImplementedError


@offered(repeatable=True)
def folder_round(
    folder: str, number: int, edits: list[dict[str, Any]], task: str, check: str, check_timeout_s: float,
    show: list[str], protect: list[str] | None, view_bytes: int,
) -> dict[str, Any]:  # fmt: skip
    """Restore the folder, apply the edits of a round and run the check (``actors.workspace``)."""
    raise NotImplementedError


@offered(repeatable=True)
def folder_closed(folder: str) -> None:
    """Close the folder and delete its snapshots (``actors.workspace``)."""
    raise NotImplementedError


class Ralph(Program, frozen=True):
    """Work on ``folder`` by ``task`` until ``check`` passes: a command line run in the folder, or ``file.py:function``.

    A function gets the folder's path and returns what is left to do (a number or a list; True, None, 0, [] pass). The
    model cannot change files that match ``protect`` (default: the check's own file), and always sees files that match
    ``show``. After ``quiet_rounds`` rounds without progress the task is framed differently, ``reframes`` times, and
    then the work ends, stagnated. The check runs code that the model wrote: give it no more rights than the model
    should have.
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
    """None: the check's own file, if the command plainly runs one (``python3 check.py``)."""
    view_bytes: int = 24_000
    output_tokens_max: int = 4_096

    def begin(self, k: State) -> Iterable[Change]:
        """Yield the goal that opens the folder. Raises ``ValueError`` for invalid limits."""
        StagnationPolicy(self.quiet_rounds, self.reframes)
        for name in ("rounds", "view_bytes", "output_tokens_max", "check_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above zero, not {getattr(self, name)}")
        ceiling_s = TOOL_S / 2
        if self.check_timeout_s > ceiling_s:
            raise ValueError(f"check_timeout_s must be at most {ceiling_s:g}, not {self.check_timeout_s:g}")
        for name in ("folder", "task", "check"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty")
        yield Goal("open")

    # -- select --------------------------------------------------------------------------------------------------------

    def select(self, k: State) -> Iterable[Ask | Change]:
        """Yield the next step: open, ask, apply and check, or leave."""
        for goal in k.open():
            if goal.kind == "ask":
                progress = _progress(goal)
                sample = str(progress.round * SAMPLES_A_ROUND + goal.resamples)
                yield Ask(goal, self.prompt(progress, goal.refused), None, self.output_tokens_max, sample=sample)
            elif goal.kind == "open":
                yield RunTool(goal, "folder_opened", {"folder": self.folder, **self._settings()})
            elif goal.kind == "apply":
                progress = _progress(goal)
                where = {"folder": progress.folder, "number": progress.number, "edits": goal.value["edits"]}
                protect = None if self.protect is None else list(self.protect)
                yield RunTool(goal, "folder_round", {**where, "protect": protect, **self._settings()})
            elif goal.kind == "leave":
                yield RunTool(goal, "folder_closed", {"folder": goal.value["folder"]})

    def _settings(self) -> dict[str, Any]:
        return {
            "task": self.task, "check": self.check, "check_timeout_s": self.check_timeout_s, "show": list(self.show),
            "view_bytes": self.view_bytes,
        }  # fmt: skip

    def prompt(self, standing: WorkProgress, refused: str = "") -> Prompt:
        """Return the prompt: task, folder, output of the check. If it does not fit, the least important contents are
        cut first.
        """
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
        answer = check["said"] or f"[it says nothing; exit code {check['exit']}]"
        parts.append(Part(Role.ANNOTATION, answer, 20, Rule.CUT, f"Check: {self.check}"))
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
        """Parse the answer's edits for a worker. Raises ``Malformed``, which requests another answer, for anything
        else, and for a reply that was cut: edits that came whole may need those that are missing.
        """
        if not finished(reply):
            raise Malformed(f"it was cut ({reply.stop_reason}), and none of its edits was made: make fewer at once")
        edits = edits_of(reply.text)
        yield Resolve(goal)
        yield Goal("apply", {**goal.value, "edits": edits})

    def absorbed(self, k: State, goal: Goal, value: Any) -> Iterable[Change]:
        """Take in the folder after it was opened, after a round, or after it was left."""
        yield Resolve(goal)
        if goal.kind == "leave":
            yield from _end_text(goal.value["answer"])
            return
        found = RoundFacts(value["view"]["digest"], value["check"]["found"], value["check"]["failing"])
        seen = {"folder": value["folder"], "number": value["number"], "check": value["check"], "view": value["view"]}
        if goal.kind == "open":
            progress = WorkProgress(**seen, reached=and_now(ProgressSoFar(), found))
            yield from self._end(progress, "passed", 0) if value["check"]["passed"] else [_asked(progress)]
            return
        before = _progress(goal)
        got_on = progressed(before.reached, found)
        note = _noted(value["refused"], goal.value["edits"])
        quiet, reframed = (0, 0) if got_on else (before.quiet + 1, before.reframed)
        reached = and_now(before.reached, found)
        progress = msgspec.structs.replace(before, **seen, reached=reached, quiet=quiet, reframed=reframed, note=note)
        left = "" if found.failing is None else f", {found.failing} left"
        yield Log(f"round {before.round}: {'passed' if value['check']['passed'] else 'not passed'}{left}")
        yield from self._after(progress)

    def failed(self, k: State, goal: Goal, failure: Failure) -> Iterable[Change]:
        """Count a round without a usable answer as a round without progress. A folder that cannot be used ends the
        work.
        """
        if goal.kind == "ask" and failure.kind in (FailureKind.MALFORMED, FailureKind.REFUSED):
            yield Resolve(goal)
            progress = _progress(goal)
            note = f"No answer was usable: {failure.message}"[:NOTES_MAX]
            yield from self._after(msgspec.structs.replace(progress, quiet=progress.quiet + 1, note=note))
            return
        yield Fail(goal, failure.message, failure.kind)
        if goal.kind == "leave":
            yield from _end_text(goal.value["answer"])
            return
        folder, rounds = self.folder, 0
        if goal.kind in _ROUND:
            progress = _progress(goal)
            folder, rounds = progress.folder, progress.round - 1
        facts = {"rounds": rounds, "failing": None, "check": failure.message}
        yield Goal("leave", {"folder": folder, "answer": {"passed": False, "ended": failure.kind, **facts}})

    def _after(self, progress: WorkProgress) -> Iterable[Change]:
        """Yield the end of the work or the next round, reframed if the last rounds made no progress."""
        if progress.check["passed"]:
            yield from self._end(progress, "passed", progress.round)
            return
        step = next_step(progress.quiet, progress.reframed, StagnationPolicy(self.quiet_rounds, self.reframes))
        if step == StagnationStep.STOP:
            yield from self._end(progress, "stagnated", progress.round)
        elif progress.round >= self.rounds:
            yield from self._end(progress, "rounds", progress.round)
        else:
            if step == StagnationStep.REFRAME:
                progress = msgspec.structs.replace(progress, quiet=0, reframed=progress.reframed + 1)
            yield _asked(msgspec.structs.replace(progress, round=progress.round + 1))

    def _end(self, progress: WorkProgress, how: str, rounds: int) -> Iterable[Change]:
        answer = {
            "passed": how == "passed", "ended": how, "rounds": rounds, "failing": progress.check["failing"],
            "check": progress.check["said"],
        }  # fmt: skip
        yield Goal("leave", {"folder": progress.folder, "answer": answer})

    def answer(self, k: State) -> Any:
        """Return ``passed``, how it ``ended`` (passed, stagnated, rounds), the number of ``rounds``, and the check's
        output.
        """
        return next((item.value for item in k.items_of("answer")), None)


def _asked(progress: WorkProgress) -> Goal:
    return Goal("ask", {"standing": msgspec.to_builtins(progress)})


def _progress(goal: Goal) -> WorkProgress:
    return msgspec.convert(goal.value["standing"], WorkProgress)


def _end_text(answer: dict[str, Any]) -> Iterable[Change]:
    yield Item("answer", answer)
    yield Emit(answer, failed=not answer["passed"])


def _noted(refused: str, edits: list[dict[str, Any]]) -> str:
    if refused:
        return f"Its edits were refused, all of them: {refused}"[:NOTES_MAX]
    return "" if edits else "It said that nothing is left to do. The check does not pass."
