"""Environment of the core with random order, batching, faults, and late and duplicate replies.

A model's answer is a function of the question, so two runs differ only in the environment. A question that was answered
once is answered from memory, as by a channel.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import Goal, State, Status
from cortex.values.limits import Limits
from cortex.values.reply import UNKNOWN_USAGE, Reply, Usage
from policies.estimates.price import cost_nusd
from policies.estimates.tokens import body_tokens_bound
from policies.failures.failure import FailureKind
from tests.support.sample_programs import digest
from tests.support.state_machine_harness import Stage, failure, reply

TURNS_MAX = 3_000
UNPAID = {"throttled": 429, "overloaded": 529, "transient": 500}
PAID = ("timed_out", "lost", "transient")


def model(call: commands.Call) -> Reply:
    """Return the model's reply to this question, always the same; its usage stays within the reservation."""
    content = msgspec.json.decode(call.body)["messages"][0]["content"]
    word = str(content).partition(" ")[0]
    chance = digest(content, call.sample)
    text = f"w{chance % 97}"
    if word == "plan":
        text = "?" if chance % 7 == 0 else f"split:{1 + chance % 3}" if chance % 5 < 3 else text
    elif word == "vote":
        text = "yes" if chance % 3 else "no"
    elif word == "elect":
        text = ("yes", "yes", "yes", "no", "maybe", "?")[chance % 6]
    usage = Usage(chance % (body_tokens_bound(call.body) + 1), chance % (call.output_tokens_max + 1))
    return reply(text, usage)


class World:
    """Environment of one run. ``faults``: share of attempts that fail; ``late``: abandoned attempts may still be
    answered; ``slow``: each goal of that number takes minutes to be answered, which lengthens timeouts.
    """

    def __init__(
        self, program: Program, seed: int, *, limits: Limits | None = None, permits: int = 4, faults: float = 0.0,
        late: bool = False, together: int = 1, still: bool = False, unrest: float = 0.0, slow: int = 0,
        **of_terms: Any,
    ) -> None:  # fmt: skip
        self.chance, self.slow = random.Random(seed), slow
        self.faults, self.late, self.together, self.still = faults, late, together, still
        self.unrest, self.permits = unrest, permits
        self.stage = Stage(program, limits, permits=permits, **of_terms)
        self.memory: dict[bytes, Reply] = {}
        self.under_way: list[commands.Command] = []
        self.overdue: list[events.Event] = []
        self.spent: dict[int, tuple[int, int]] = {}
        self.true_nusd = 0
        self.true_tokens = 0
        self.watch: Callable[[World], None] = lambda world: None
        self._heard(self.stage.said)

    @property
    def k(self) -> State:
        """State of the job."""
        return self.stage.k

    def run(self) -> State:
        """Run until the job has ended; return K."""
        for _ in range(TURNS_MAX):
            if self.k.outcome:
                return self.k
            self.turn()
        raise AssertionError(f"no end after {TURNS_MAX} turns: {self.stage.statuses()}")

    def turn(self) -> None:
        """Let some of what is under way end, in any order; or let time pass to the next due moment."""
        if self.unrest and (self.chance.random() < self.unrest or not (self.under_way or self.overdue)):
            happened = self._unrest()
        else:
            happened = self._ends()
        at_s = self.k.at_s + (0.0 if self.still else self.chance.random())
        if not happened:
            due_at_s = self.k.due_at_s()
            assert due_at_s is not None, f"nothing under way and nothing due: {list(self.k.goals.values())}"
            happened, at_s = [events.Ticked()], max(due_at_s, at_s)
        self._heard(self.stage.turn(*happened, at_s=at_s))
        self.watch(self)

    def _ends(self) -> list[events.Event]:
        """Return ends of some attempts under way, or overdue ones."""
        happened: list[events.Event] = []
        for _ in range(self.chance.randint(1, self.together)):
            if self.under_way:
                happened += self._end_of(self.under_way.pop(self.chance.randrange(len(self.under_way))))
        if self.overdue and (self.chance.random() < 0.3 or not happened):
            happened.append(self.overdue.pop(self.chance.randrange(len(self.overdue))))
        return happened

    def _unrest(self) -> list[events.Event]:
        """Return events of a channel that was restarted, or of routes that were shared out anew."""
        routes = len(self.k.terms.routes)
        if self.chance.random() < 0.8:
            return [events.PermitsGranted(self.chance.choice([0, 1, self.permits]), self.chance.randrange(routes))]
        held = [one for one in self.under_way if isinstance(one, commands.Call) and self.chance.random() < 0.5]
        for call in self.under_way:
            if isinstance(call, commands.Call) and call not in held and self.chance.random() < 0.5:
                # the provider has answered, and the reply comes late
                self.overdue.append(self._answer(call, remembered=False))
        self.under_way = list(held)
        keys = tuple((call.goal, call.attempt) for call in held)
        return [events.Rejoined(self.k.epoch + 1, keys), events.PermitsGranted(self.permits)]

    def _heard(self, out: list[commands.Command]) -> None:
        for command in out:
            if isinstance(command, (commands.Call, commands.StartToolRun, commands.LaunchChildJob)):
                self.under_way.append(command)
            elif isinstance(command, commands.AbandonAttempt):
                self._abandon(command)

    def _abandon(self, command: commands.AbandonAttempt) -> None:
        """Cancel a call. Most calls stop; one that was answered already is paid nevertheless."""
        for call in self.under_way:
            if isinstance(call, commands.Call) and (call.goal, call.attempt) == (command.goal, command.attempt):
                self.under_way.remove(call)
                if self.late and self.chance.random() < 0.5:
                    self.overdue.append(self._answer(call))
                else:
                    self.overdue.append(self._broken(call, "cancelled", 0, self.chance.random() < 0.5))
                return

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _end_of(self, command: commands.Command) -> list[events.Event]:
        if isinstance(command, commands.StartToolRun):
            return [self._tool_end(command)]
        if isinstance(command, commands.LaunchChildJob):
            return [self._child_end(command)]
        assert isinstance(command, commands.Call)
        if command.hash in self.memory:
            return [events.ReplyRecalled(command.goal, command.sample, command.hash, self.memory[command.hash])]
        if self.chance.random() >= self.faults:
            return [self._answer(command)]
        if self.chance.random() < 0.4:
            kind = self.chance.choice(list(UNPAID))
            wait_s = self.chance.choice([None, 2.0]) if kind == "throttled" else None
            return [self.stage.broke(command, kind, status=UNPAID[kind], retry_after_s=wait_s)]
        if self.chance.random() < 0.3:
            return [self._broken(command, self.chance.choice(PAID), 0, False)]
        if self.late and self.chance.random() < 0.5:
            self.overdue.append(self._answer(command, remembered=False))
            return [
                events.AttemptFailed(command.goal, command.sample, command.attempt, failure(self.chance.choice(PAID)))
            ]
        return [self._broken(command, self.chance.choice(PAID), 0, True)]

    def _answer(self, call: commands.Call, remembered: bool = True) -> events.Event:
        found = model(call)
        self._pay(call, found.usage)
        if self.faults and digest(call.body, call.sample) % 9 == 0:  # a server that reports no usage
            found = msgspec.structs.replace(found, usage=UNKNOWN_USAGE)
        if remembered:
            self.memory[call.hash] = found
        self.stage.calls.pop((call.goal, call.attempt), None)
        elapsed_s = 300.0 if self.slow and call.goal % self.slow == 0 else 0.5
        return events.Answered(call.goal, call.sample, call.attempt, call.hash, found, elapsed_s)

    def _broken(self, call: commands.Call, kind: str, status: int, sent: bool) -> events.Event:
        if sent:
            self._pay(call, model(call).usage)  # the provider has answered, and the reply is lost
        return self.stage.broke(call, kind, status=status, sent=sent)

    def _pay(self, call: commands.Call, usage: Usage) -> None:
        price = self.k.terms.routes[call.route].price
        self.true_nusd += cost_nusd(price, usage) if price is not None else 0
        self.true_tokens += usage.input_tokens_billed + usage.output_tokens

    def _tool_end(self, command: commands.StartToolRun) -> events.Event:
        bad = None
        if self.chance.random() < self.faults:
            bad = failure(self.chance.choice([FailureKind.LOST, FailureKind.TIMED_OUT, FailureKind.FAULTY]))
        value = f"value {self.chance.randint(0, 9) if self.faults else digest(command.tool, command.arguments) % 10}"
        return events.Observed(command.goal, command.attempt, value, self.k.at_s, bad)

    def _child_end(self, command: commands.LaunchChildJob) -> events.Event:
        """Return the end of a child job. A child with the same name continues from its earlier costs, which its caps
        include.
        """
        before_nusd, before_tokens = self.spent.get(command.goal, (0, 0))
        nusd = before_nusd + (5 if command.max_cost_nusd is None else max(0, command.max_cost_nusd - before_nusd) // 2)
        tokens = before_tokens + (
            5 if command.max_job_tokens is None else max(0, command.max_job_tokens - before_tokens) // 2
        )
        self.true_nusd += nusd - before_nusd
        self.true_tokens += tokens - before_tokens
        self.spent[command.goal] = (nusd, tokens)
        bad = None
        if self.chance.random() < self.faults:
            bad = failure(self.chance.choice([FailureKind.FAULTY, FailureKind.OVER_BUDGET]))
        return events.ChildJobEnded(command.goal, command.attempt, "child", nusd, 0, tokens, 0, bad)


# -- comparison of two runs -----------------------------------------------------------------------------------------


def meaning(k: State, emitted: list[Any]) -> dict[str, Any]:
    """Return the content of K that does not depend on the order of events.

    A goal is identified by its place below its parent, not by its id. A goal's children are compared as a multiset, and
    so are items and results. Left out: ids; times; how often an attempt was made, shared or answered from memory, since
    equal questions share an attempt only while it is under way; and counts of duplicates.

    Included: every goal's kind, value, status, sample, framing, answer, label and failure; every item with its sources
    and the goal that made it; money and tokens; and the tally.
    """
    ledger, tally = k.ledger, k.tally
    return {
        "outcome": (k.outcome, k.why, k.paused, k.live),
        "goals": sorted(_goal(k, goal) for goal in k.goals.values() if not goal.parent),
        "items": sorted(_item(k, item_id) for item_id in k.items),
        "results": sorted(map(repr, emitted)),
        "money": (ledger.known_nusd, ledger.assumed_nusd, ledger.reserved_nusd),
        "tokens": (ledger.known_tokens, ledger.input_tokens, ledger.output_tokens, ledger.assumed_tokens),
        "paid": (ledger.paid_calls, ledger.attempts, ledger.paid_again, k.successes),
        "tally": (tally.calls, tally.succeeded, tally.failed, tally.rows_read, sorted(tally.failures.items())),
        "estimate": k.estimate,
    }


def _goal(k: State, goal: Goal) -> str:
    children = sorted(_goal(k, child) for child in k.children(goal))
    bad = (goal.failure.kind, goal.failure.message) if goal.failure is not None else None
    counts = (goal.children_resolved, goal.children_failed, goal.resamples, goal.too_large, goal.depth, goal.partial)
    parts = (goal.kind, goal.value, Status(goal.status).name, goal.sample, goal.constructor, goal.answer, bad, counts)
    return repr((parts, children))


def _item(k: State, item_id: int) -> str:
    item = k.items[item_id]
    maker = k.goals.get(int(item.call.split("/")[1])) if item.call else None
    by = (maker.kind, maker.value) if maker is not None else None
    return repr((item.kind, item.value, item.lossy, by, [_item(k, source) for source in item.sources]))
