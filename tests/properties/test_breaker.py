"""The breaker's promises under any interleaving, and pybreaker's at a branch, which equals it at every step."""

from __future__ import annotations

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.branch.route_breakers import CircuitBreakerError, RouteBreakers
from cortex.scheduler.reports import BreakerStanding, ReportAnswer
from policies.failures import breaker
from policies.failures.breaker import Breaker, BreakerMove, BreakerPolicy, BreakerState

P = BreakerPolicy(window_count=12, volume_min=4, window_s=20.0, probes=3, blocked_open_s=60.0)
PROBE_S = 30.0
"""From leave to deadline."""


class Probe(msgspec.Struct, eq=False):
    """One probe, as the world knows it."""

    generation: int
    deadline_s: float
    sent_s: float
    blocked: bool


class Call(msgspec.Struct, eq=False):
    """An ordinary attempt under way."""

    generation: int


def answer(**breakers: Breaker) -> ReportAnswer:
    """Return what a scheduler with these breakers, by route, answers to a report."""
    shut = {name: one for name, one in breakers.items() if one.state is not BreakerState.CLOSED}
    return ReportAnswer(1.0, "c", tuple(BreakerStanding(name, one.state, one.generation) for name, one in shut.items()))


class World(RuleBasedStateMachine):
    """Any order of calls, answers, losses, blocks and waits. The truth about each probe is kept beside the breaker."""

    def __init__(self) -> None:
        super().__init__()
        self.at_s = 0.0
        self.breaker = Breaker()
        self.unresolved: list[Probe] = []
        self.calls: list[Call] = []
        self.blocked_probes_s: list[float] = []
        self.branch = RouteBreakers("branch:0", lambda: self.at_s)
        self.at_branch = self.branch.of("route")

    def _took(self, generation: int, moved: BreakerMove | None) -> None:
        if moved is not None:
            assert moved.new == self.breaker.state != moved.old
            assert moved.why or moved.new is BreakerState.HALF_OPEN
            assert generation in (self.breaker.generation - 1, self.breaker.generation)
            self.branch.heard(answer(route=self.breaker))

    def _told(self, generation: int, kind: str, n: int, draw: float, slow: bool, retry_after_s: float) -> None:
        before = msgspec.structs.replace(self.breaker, waves=[])
        late = generation != self.breaker.generation
        counts = {"good": 0, "bad": 0, "void": 0}
        counts["void" if kind == "blocked" else kind] = n
        slow_n = n if slow and kind in ("good", "bad") else 0
        moved = breaker.observe(
            P, self.breaker, self.at_s, generation, counts["good"], counts["bad"], slow_n, retry_after_s, draw,
            counts["void"],
        )  # fmt: skip
        self._took(generation, moved)
        if kind == "blocked":
            moved = breaker.block(P, self.breaker, self.at_s, generation, "credit", draw)
            self._took(generation, moved)
        if late:
            assert msgspec.structs.replace(self.breaker, waves=[]) == before, "a late result decided something"
        if kind == "void":
            assert self.breaker.state == before.state

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 7.0, 31.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.at_s += seconds
        self._took(self.breaker.generation, breaker.passed(P, self.breaker, self.at_s))

    @precondition(lambda self: self.breaker.state is BreakerState.CLOSED)
    @rule(n=st.integers(1, 6))
    def calls_begin(self, n: int) -> None:
        self.calls += [Call(self.breaker.generation) for _ in range(n)]

    @rule(most=st.integers(1, 5))
    def probes_are_sent(self, most: int) -> None:
        n = min(most, breaker.probes_wanted(P, self.breaker, self.at_s))
        deadline_s = self.at_s + PROBE_S
        breaker.probe_out(P, self.breaker, self.at_s, deadline_s, n)
        for _ in range(n):
            assert self.breaker.state is BreakerState.HALF_OPEN
            self.unresolved.append(Probe(self.breaker.generation, deadline_s, self.at_s, self.breaker.blocked))
            if self.breaker.blocked:
                self.blocked_probes_s.append(self.at_s)

    @precondition(lambda self: bool(self.unresolved))
    @rule(place=st.integers(0, 99), kind=st.sampled_from(["good", "good", "bad", "void", "blocked"]),
          draw=st.sampled_from([0.0, 0.5, 0.999]), slow=st.booleans(), retry_after_s=st.sampled_from([0.0, 0.0, 12.0]))  # fmt: skip
    def a_probe_answers(self, place: int, kind: str, draw: float, slow: bool, retry_after_s: float) -> None:
        """However late: also one whose deadline has passed, and one of an earlier stay."""
        probe = self.unresolved.pop(place % len(self.unresolved))
        self._told(probe.generation, kind, 1, draw, slow, retry_after_s)

    @precondition(lambda self: bool(self.unresolved))
    @rule(place=st.integers(0, 99))
    def a_probe_is_never_heard_of(self, place: int) -> None:
        """Lost with its branch: the truth is that it still counts until its deadline, so nothing is done."""
        event("lost")
        probe = self.unresolved[place % len(self.unresolved)]
        self.at_s = max(self.at_s, probe.deadline_s)

    @precondition(lambda self: bool(self.calls))
    @rule(place=st.integers(0, 99), n=st.integers(1, 8), kind=st.sampled_from(["good", "bad", "bad", "void", "blocked"]),
          draw=st.sampled_from([0.0, 0.999]), slow=st.booleans())  # fmt: skip
    def calls_end(self, place: int, n: int, kind: str, draw: float, slow: bool) -> None:
        generation = self.calls[place % len(self.calls)].generation
        these = [call for call in self.calls if call.generation == generation][:n]
        self.calls = [call for call in self.calls if call not in these]
        self._told(generation, kind, len(these), draw, slow, 0.0)

    @rule()
    def its_holder_is_restarted(self) -> None:
        self.breaker = msgspec.msgpack.decode(msgspec.msgpack.encode(self.breaker), type=Breaker)

    @invariant()
    def at_most_n_probes_are_unresolved(self) -> None:
        out = [probe for probe in self.unresolved if probe.deadline_s > self.at_s]
        assert len(out) <= P.probes

    @invariant()
    def a_blocked_account_is_probed_once_a_minute(self) -> None:
        newest = self.blocked_probes_s[-2:]
        assert len(newest) < 2 or newest[1] - newest[0] >= P.blocked_open_s

    @invariant()
    def nothing_is_wanted_but_half_open(self) -> None:
        wanted = breaker.probes_wanted(P, self.breaker, self.at_s)
        assert wanted == 0 or self.breaker.state is BreakerState.HALF_OPEN
        assert wanted <= (1 if self.breaker.blocked else P.probes)

    @invariant()
    def a_branch_that_hears_sends_what_is_granted_now_and_nothing_of_before(self) -> None:
        self.branch.heard(answer(route=self.breaker))
        assert self.at_branch.state == self.breaker.state
        for generation in range(self.breaker.generation + 1):
            try:
                if self.at_branch.shut:
                    self.at_branch.admit(generation)
                sent = True
            except CircuitBreakerError:
                sent = False
            now = generation == self.breaker.generation
            state = self.breaker.state
            assert sent == (state is BreakerState.CLOSED or (state is BreakerState.HALF_OPEN and now))

    @invariant()
    def it_stays_small(self) -> None:
        assert len(self.breaker.waves) <= P.probes + 1
        assert sum(tally.total for tally in self.breaker.window) <= max(P.window_count, 8)


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)


@given(
    walk=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["good", "bad", "pass"]), st.floats(0, 10)), max_size=80
    )
)
@settings(deadline=None)
def test_subjects_do_not_move_each_other(walk: list[tuple[str, str, float]]) -> None:
    values = {subject: Breaker() for subject in "abc"}
    branch = RouteBreakers("branch:0", lambda: 0.0)
    at_s = 0.0
    for subject, what, seconds in walk:
        at_s += seconds
        value = values[subject]
        if what == "pass":
            breaker.passed(P, value, at_s)
        else:
            good, bad = (4, 0) if what == "good" else (0, 4)
            breaker.observe(P, value, at_s, value.generation, good, bad, 0, 0.0, 0.5)
        before = {name: branch.of(name).state for name in values if name != subject}
        branch.heard(answer(**values))
        assert before == {name: branch.of(name).state for name in values if name != subject}
        assert {name: branch.of(name).state for name in values} == {name: str(one.state) for name, one in values.items()}
