"""A program that was changed begins K anew, and its paid replies are found again: by the identity of the question."""

from __future__ import annotations

import pytest

from cortex.journal import codec
from cortex.programs.batch import Batch
from cortex.state import commands, events
from cortex.state.changes import Ask, Goal
from cortex.state.program import Program
from cortex.values.limits import Limits, Route
from policies.estimates.price import parse_price
from tests.support.state_machine_harness import PRICE, Flat, Stage, fed, of, prompt, puppet, reply, terms


class Memory:
    """What a channel remembers: replies by the hash of their question."""

    def __init__(self) -> None:
        self.replies: dict[bytes, object] = {}

    def run(self, stage: Stage) -> Stage:
        """Answer what is remembered from memory, and the rest anew."""
        while stage.calls:
            (key, call) = next(iter(stage.calls.items()))
            known = self.replies.get(call.hash)
            if known is not None:
                del stage.calls[key]
                stage.turn(events.ReplyRecalled(call.goal, call.sample, call.hash, known))
            else:
                event = stage.answered(call, f"about {call.sample}")
                self.replies[call.hash] = event.reply
                stage.turn(event)
        return stage


def begun_anew(program: Program, before: Stage) -> Stage:
    """The same job with another program: its ledger is carried over and its goals are numbered on."""
    opened = events.Opened(terms(price=PRICE, fingerprint="changed"), 2, before.k.next_goal, before.k.ledger)
    return Stage(program, opened=opened)


def test_a_changed_program_gives_the_same_rows_and_pays_nothing():
    memory = Memory()
    first = memory.run(Stage(Flat(texts=("a", "b", "c")), price=PRICE))
    again = memory.run(begun_anew(Flat(texts=("c", "b", "a")), first))
    assert sorted(again.emitted) == sorted(first.emitted)
    assert again.k.outcome == "complete"
    now, then = again.k.ledger, first.k.ledger
    assert (now.paid_calls, now.known_nusd) == (then.paid_calls, then.known_nusd)
    assert (now.reused_calls, now.attempts) == (3, then.attempts)
    assert [goal.id for goal in again.k.goals.values()] == [4, 5, 6], "a late reply can be taken for no other's"


def test_only_what_was_never_asked_is_paid():
    memory = Memory()
    first = memory.run(Stage(Flat(texts=("a", "b")), price=PRICE))
    again = memory.run(begun_anew(Flat(texts=("a", "b", "new")), first))
    assert again.k.ledger.paid_calls == first.k.ledger.paid_calls + 1


def test_rows_of_a_batch_are_found_by_their_names_and_bodies():
    memory = Memory()
    first = Stage(Batch(), Limits(), streams=True, price=PRICE)
    first.turn(fed("a", "b", "c", ended=True))
    memory.run(first)
    opened = events.Opened(
        terms(price=PRICE, streams=True, fingerprint="ordered"), 2, first.k.next_goal, first.k.ledger
    )
    again = Stage(Batch(ordered=True), opened=opened)
    again.turn(fed("a", "b", "c", "d", ended=True))
    memory.run(again)
    assert again.emitted[:3] == first.emitted
    assert again.k.ledger.paid_calls == 4


def question(route: Route | None = None, **ask: object) -> bytes:
    """The hash under which this is asked."""
    spec = {"prompt": prompt("p"), **ask}
    program = puppet(begin=lambda k: [Goal("x")], select=lambda k: [Ask(g, **spec) for g in k.open("x")])  # type: ignore[arg-type]
    stage = Stage(program, opened=events.Opened(terms(route=route), 1))
    return stage.call().hash


SIM = Route(endpoint="sim", model="m")
SAME = {
    "the name of the framing": {"prompt": prompt("p", "another framing")},
    "parameters in another order": {"params": {}},
    "the default length, said aloud": {"output_tokens_max": 1_024},
    "another price": {"route": Route(endpoint="sim", model="m", price=parse_price("input=1,output=2"))},
    "another credential": {"route": Route(endpoint="sim", model="m", credential="another")},
    "another window": {"route": Route(endpoint="sim", model="m", context_window=90_000)},
}
OTHER = {
    "another text": {"prompt": prompt("q")},
    "another length": {"output_tokens_max": 5},
    "another parameter": {"params": {"stop_sequences": ["x"]}},
    "another sample": {"sample": "1"},
    "another model": {"route": Route(endpoint="sim", model="n")},
    "another endpoint": {"route": Route(endpoint="https://x", model="m")},
}


@pytest.mark.parametrize("name", SAME)
def test_the_question_is_the_same(name):
    assert question(**SAME[name]) == question(SIM)


@pytest.mark.parametrize("name", OTHER)
def test_the_question_is_another(name):
    """A rehearsal, above all, is never taken for the provider."""
    assert question(**OTHER[name]) != question(SIM)


def test_a_question_keeps_its_hash_over_releases():
    """Were it to change, every reply that was ever paid for would be forgotten: a change here is to be meant."""
    assert question(SIM).hex() == "53592284f561d29e98c48eb2c7daa865"


def test_a_resample_is_never_answered_by_the_reply_that_was_discarded():
    from cortex.state.changes import Resolve
    from cortex.values.reply import Malformed

    def absorb(k, goal, reply):
        if reply.text == "about 0":
            raise Malformed("no")
        yield Resolve(goal, reply.text)

    program = puppet(begin=lambda k: [Goal("x", "v")], absorb=absorb)
    memory = Memory()
    first = memory.run(Stage(program, price=PRICE))
    assert (first.emitted, first.k.ledger.paid_calls) == (["about 1"], 2)
    again = memory.run(begun_anew(program, first))
    assert again.emitted == ["about 1"]
    assert again.k.ledger.paid_calls == 2, "the discarded one stays discarded, and neither is paid again"
    assert again.k.tally.failures == {"malformed": 1}


def test_tools_and_observations_are_never_remembered():
    """They have no hash to be remembered under."""
    for kind in (commands.StartToolRun, commands.LaunchChildJob):
        assert "hash" not in kind.__struct_fields__
    assert "hash" in commands.Call.__struct_fields__


def test_the_journal_of_the_renewed_job_replays_from_its_opening():
    memory = Memory()
    first = memory.run(Stage(Flat(texts=("a", "b")), price=PRICE))
    again = memory.run(begun_anew(Flat(texts=("b", "a")), first))
    made = iter([first.program, again.program])
    k = codec.replay(None, first.turns + again.turns, lambda terms: next(made))
    assert codec.encode_state(k) == codec.encode_state(again.k)
    assert of(again.said, commands.FinishJob) == [commands.FinishJob("complete", "")]
    assert reply("x") == reply("x")
