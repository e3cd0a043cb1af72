"""A failing world shrinks by itself to the shortest script that fails alike."""

from __future__ import annotations

import pytest

from tests.simulation import mutations
from tests.simulation.runner import Verdict, live
from tests.simulation.scenario import Plan, Trouble, plan
from tests.simulation.shrinking import complaint, decoded, encoded, script, shrunk, shrunk_seed


def test_a_script_holds_only_what_the_failure_needs() -> None:
    """It needs 3 rows of a job, a dead branch after two seconds, and nothing else."""

    def run(made: Plan) -> Verdict:
        dead = any(each.kind == "crash" and each.target == "branch" and each.at_s > 2.0 for each in made.troubles_at)
        row = max(job.rows for job in made.jobs)
        return Verdict(made.seed, f"at {row}.5 s: 'row {row}' is lost" if dead and row >= 3 else "")

    made = plan(3)
    made.troubles_at = [
        *(Trouble(at, "crash", "cortex") for at in (1.0, 2.0, 3.0)), Trouble(1.0, "crash", "branch"),
        Trouble(4.0, "crash", "branch", 2.0, 0.5), Trouble(5.0, "crash", "branch"), Trouble(6.0, "clock_jumps"),
    ]  # fmt: skip
    found, tried = shrunk(made, run)
    assert [(each.kind, each.target) for each in found.troubles_at] == [("crash", "branch")]
    assert [job.rows for job in found.jobs] == [3] and tried < 400
    assert (found.branches, found.nodes, found.trouble, found.idle_s) == (1, 1, 0.0, 0.0)
    assert "crash branch for" in script(found) and "clock_jumps" not in script(found)
    assert decoded(encoded(found)) == found


def test_another_complaint_is_another_failure() -> None:
    one, two = (Verdict(1, f"at {at} s: 'row {at}' is paid {at} times") for at in (3.5, 22.0))
    assert complaint(one) == complaint(two) != complaint(Verdict(1, "at 3 s: 'row 3' is lost"))
    assert complaint(Verdict(1)) == ""
    whole = plan(3)
    assert shrunk(whole, lambda made: Verdict(made.seed)) == (whole, 1)


@pytest.mark.long
def test_a_planted_fault_shrinks_to_a_script_that_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    (seed,) = mutations.FAULTS["tool_lost_unnoticed"].seeds
    mutations.tool_lost_unnoticed(monkeypatch)
    text = shrunk_seed(seed, within_s=15.0)
    before, after = script(plan(seed)), text.partition("\n  shortest of ")[0]
    assert len(after.splitlines()) <= len(before.splitlines())
    assert live(seed, made=decoded(text.rpartition("as JSON: ")[2].encode())).broken
