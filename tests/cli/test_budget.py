"""``cortex budget``: what all jobs of a label cost together is never passed, raised it lets them go on, and is listed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from actors.journal.journal import StateFolder
from actors.limits.budgets import FolderBudgets
from policies.limits.slices import Budget
from tests.cli.cli_runner import Done, ended, requests, started, until

PRICED = ("--model", "sim", "--price", "input=3,output=15", "--max-output-tokens", "40")
LABEL = ("--label", "team=search")


def _folder() -> StateFolder:
    return StateFolder(os.environ["CORTEX_STATE"])


def _listed(done: Done) -> list[dict[str, object]]:
    assert done.code == 0, done
    return list(json.loads(done.out)["budgets"])


def _spent(*outputs: dict[str, object]) -> float:
    return sum(float(str(each["cost_usd"])) + float(str(each["cost_assumed_usd"])) for each in outputs)


def test_a_budget_is_set_listed_raised_and_removed(cortex):
    assert cortex("budget").said()[0].startswith("no budget is set in ")
    lines = cortex("budget", "team=search", "--max-cost-per-day", "200", "--max-cost-per-month", "$3000").said()
    assert "team=search a day: $200.00, set by " in lines[0] and "the day is in UTC" in lines[0]
    assert "team=search a month: $3,000.00" in lines[1]
    assert cortex("budget", "team=serch").said() == ["no budget of team=serch is set; `cortex budget` lists what is"]
    day, month = _listed(cortex("budget", "--json"))
    assert (day["label"], day["period"], day["max_cost_usd"], day["spent_usd"]) == ("team=search", "day", 200.0, 0.0)
    assert (day["left_usd"], month["period"]) == (200.0, "month") and day["who"] and day["at_s"]
    assert time.time() < float(str(day["until_s"])) <= time.time() + 86_400
    assert "(was $200.00)" in cortex("budget", "team=search", "--max-cost-per-day", "400").said()[0]
    assert "$400.00 a day" in cortex("budget", "team=search").out
    assert cortex("budget", "team=search", "--remove").said()[0].startswith("team=search a day: removed")
    assert _listed(cortex("budget", "--json")) == []


def _gone() -> None:
    """Remove the budgets as a whole, as whoever tidies a folder does."""
    for path in _folder().path.glob("budgets.sqlite*"):
        path.unlink()


def test_budgets_that_are_removed_as_a_whole_are_told_before_anything_is_asked(cortex):
    """Their checksums are gone with them, and no label would be bounded any more."""
    assert cortex("budget", "team=search", "--max-cost-per-day", "200", "--max-cost-per-month", "3000").code == 0
    assert cortex("budget", "team=ads", "--max-cost-per-day", "9").code == 0
    requests(Path("in.jsonl"), 3)
    job = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", *PRICED)
    assert cortex(*job, *LABEL, "--max-cost", "1").code == 0
    _gone()
    line = cortex(*job, *LABEL, "--fresh", "--overwrite").said()[-1]
    assert line.startswith("the budget team=search a day was set in ") and "`cortex budget team=search --remove`" in line
    other = ("batch", "in.jsonl", "-o", "other.jsonl", "--job", "other", *PRICED, "--label", "team=sales")
    assert cortex(*other).code == 0, "a job that none of them covers goes on"
    listed = cortex("budget")
    assert listed.code == 1 and len([text for text in listed.said() if " is gone: restore" in text]) == 3
    assert cortex("budget", "team=search", "--max-cost-per-day", "100").code == 0
    assert "the budget team=search a month was set in " in cortex(*job, *LABEL, "--fresh", "--overwrite").said()[-1]
    removed = cortex("budget", "team=search", "--remove").said()
    assert removed == ["team=search a day: removed, it was $100.00", "team=search a month: removed, it was gone"]
    assert cortex(*job, *LABEL, "--fresh", "--overwrite").code == 0
    assert cortex("budget", "team=ads", "--remove").said() == ["team=ads a day: removed, it was gone"]
    assert cortex("budget").code == 0
    cortex("budget", "team=ads", "--remove").refused("no budget of team=ads is set")


def test_a_budget_whose_value_has_words_is_known_by_its_whole_name(cortex):
    assert cortex("budget", "team=a a day", "--max-cost-per-day", "2").code == 0
    _gone()
    requests(Path("in.jsonl"), 1)
    job = ("batch", "in.jsonl", "-o", "out.jsonl", *PRICED)
    assert cortex(*job, "--label", "team=a").code == 0
    assert "the budget team=a a day a day was set" in cortex(*job, "--label", "team=a a day", "--job", "b", "--overwrite").err
    assert cortex("budget", "team=a a day", "--remove").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("search", "--max-cost-per-day", "1"), ["'search'", "team=search"]),
        (("team=search", "--max-cost-per-day", "much"), ["--max-cost-per-day: 'much'", "2.50"]),
        (("team=search", "--max-cost-per-month", "0"), ["--max-cost-per-month"]),
        (("team=search", "--max-cost-per-day", "none"), ["--remove"]),
        (("--max-cost-per-day", "1"), ["a budget needs a label"]),
        (("team=search", "--remove"), ["no budget of team=search is set"]),
        (("team=search", "--remove", "--max-cost-per-day", "1"), ["--remove", "leave the amounts out"]),
    ],
)
def test_what_makes_no_sense_is_one_line(cortex, arguments, words):
    cortex("budget", *arguments).refused(*words)


def test_a_budget_with_no_price_is_refused_before_anything_is_paid(cortex, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    requests(Path("in.jsonl"), 3)
    cortex("budget", "team=search", "--max-cost-per-day", "1")
    given = ("--model", "nobody-knows-it", "--base-url", "http://127.0.0.1:9")
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", *given, *LABEL)
    done.refused("no price known for 'nobody-knows-it'", "the budget team=search a day cannot hold", "--price")
    assert not Path("out.jsonl").exists() and "no jobs" in cortex("jobs").said()[0]
    assert "no price known" not in cortex("batch", "in.jsonl", "-o", "out.jsonl", *given, "--rpm", "x").err


def test_at_its_end_jobs_are_partial_and_raised_they_go_on(cortex):
    requests(Path("in.jsonl"), 200)
    cortex("budget", "team=search", "--max-cost-per-day", "0.01")
    first = cortex("batch", "in.jsonl", "-o", "a.jsonl", *PRICED, *LABEL, "--job", "a", "--json")
    assert first.code == 3 and first.last["outcome"] == "partial"
    assert "over_budget: the budget team=search of $0.01 a day has $0.00" in first.err
    assert "it is whole again at 20" in first.err and "cortex budget lists it" in first.err
    other = cortex("batch", "in.jsonl", "-o", "b.jsonl", *PRICED, "--job", "b", "--fresh", "--json")
    assert other.code == 0, "it has no such label"
    second = cortex("batch", "in.jsonl", "-o", "c.jsonl", *PRICED, *LABEL, "--job", "c", "--fresh", "--json")
    assert second.code == 3 and 0.008 < _spent(first.last, second.last) <= 0.01
    (day,) = _listed(cortex("budget", "--json"))
    assert day["spent_usd"] == pytest.approx(_spent(first.last, second.last)) and day["lent_usd"] == 0
    cortex("budget", "team=search", "--max-cost-per-day", "5")
    assert cortex("resume", "a", "--json").last["outcome"] == "complete"


def test_a_budget_that_is_set_later_counts_what_was_spent_before(cortex):
    requests(Path("in.jsonl"), 30)
    done = cortex("batch", "in.jsonl", "-o", "a.jsonl", *PRICED, *LABEL, "--job", "a", "--json").last
    assert f"spent ${_spent(done):.4g}" in cortex("budget", "team=search", "--max-cost-per-day", "0.01").err
    assert "spent $0 " in cortex("budget", "team=other", "--max-cost-per-day", "0.01").err


@pytest.mark.long
def test_two_jobs_of_one_budget_and_both_go_on_when_it_is_raised(cortex):
    """The issue's own measure: two processes, one budget, raised while they run."""
    requests(Path("in.jsonl"), 1000)
    cortex("budget", "team=search", "--max-cost-per-day", "0.02")
    ways = (*PRICED, *LABEL, "--fresh", "--wait-blocked", "10m", "--json")
    with (
        started("batch", "in.jsonl", "-o", "a.jsonl", *ways, "--job", "a") as one,
        started("batch", "in.jsonl", "-o", "b.jsonl", *ways, "--job", "b") as two,
    ):

        rest: list[dict[str, object]] = []

        def waiting(more_than_usd: float) -> bool:
            """Both wait, and the books agree with them: neither was lent what the other gave back between two looks."""
            rest[:] = [json.loads(cortex("status", job, "--json").out or "{}") for job in "ab"]
            if not all("over_budget" in str(each.get("waits")) for each in rest) or _spent(*rest) <= more_than_usd:
                return False
            (day,) = _listed(cortex("budget", "--json"))
            return day["spent_usd"] == pytest.approx(_spent(*rest))

        until(lambda: _folder().journal_path("b").exists() and waiting(0.017))
        before = list(rest)
        assert _spent(*before) <= 0.02
        cortex("budget", "team=search", "--max-cost-per-day", "0.04")
        until(lambda: waiting(0.037))
        assert _spent(*before) < _spent(*rest) <= 0.04  # whoever looked first has it; their ends tell that both go on
        cortex("budget", "team=search", "--max-cost-per-day", "9")
        done = [ended(each) for each in (one, two)]
    assert [each.code for each in done] == [0, 0], done


def test_what_a_killed_job_was_lent_comes_back_by_its_journal(cortex):
    requests(Path("in.jsonl"), 400)
    cortex("budget", "team=search", "--max-cost-per-day", "0.02")
    slow = ("--sim", "latency_ms=1000", "--concurrency", "4")  # the budget lasts for a quarter of a minute and more
    with started("batch", "in.jsonl", "-o", "a.jsonl", *PRICED, *LABEL, "--job", "a", *slow) as one:
        until(lambda: Path("a.jsonl").exists() and Path("a.jsonl").read_text().count("\n") >= 4)
        one.kill()
        one.wait()
    books = FolderBudgets(_folder())
    held: Budget = books.read()["team=search a day"]
    dead = held.holdings["a"]
    assert dead.held_nusd > dead.used_nusd and not dead.over
    other = cortex("batch", "in.jsonl", "-o", "b.jsonl", *PRICED, *LABEL, "--job", "b", "--fresh", "--json")
    assert other.code == 3
    found = books.read()["team=search a day"]
    assert found.holdings["a"].over and found.holdings["a"].held_nusd < dead.held_nusd
    assert 0.017e9 < found.counted_nusd <= 0.02e9
    again = cortex("resume", "a", "--json")
    assert again.code == 3 and _spent(again.last, other.last) <= 0.02


def test_what_a_removed_job_spent_stays_spent_whoever_takes_its_name(cortex):
    requests(Path("in.jsonl"), 200)
    cortex("budget", "team=search", "--max-cost-per-day", "0.01")
    given = ("batch", "in.jsonl", "-o", "a.jsonl", *PRICED, *LABEL, "--job", "a", "--fresh", "--overwrite", "--json")
    spent = _spent(cortex(*given).last)
    assert 0.005 < spent <= 0.01
    assert cortex("rm", "a").code == 0
    assert _listed(cortex("budget", "--json"))[0]["spent_usd"] == pytest.approx(spent)
    again = _spent(cortex(*given).last)
    assert spent + again <= 0.01
    assert _listed(cortex("budget", "--json"))[0]["spent_usd"] == pytest.approx(spent + again)
    assert cortex("rm", "a").code == 0
    cortex("budget", "team=search", "--remove")
    cortex("budget", "team=search", "--max-cost-per-day", "0.01")
    assert _listed(cortex("budget", "--json"))[0]["spent_usd"] == pytest.approx(spent + again)


@pytest.mark.parametrize("price", [("--price", "input=3,output=15"), ("--price-as", "claude-haiku-4-5")])
def test_a_rehearsal_that_takes_its_part_of_a_budget_says_so_first(cortex, price):
    requests(Path("in.jsonl"), 3)
    cortex("budget", "team=search", "--max-cost-per-day", "200")
    lines = cortex("batch", "in.jsonl", "-o", "out", "--model", "sim", *price, *LABEL, "--job", "priced").said()
    assert "what it would cost is taken from the budget team=search a day as if it were paid" in lines[0]
    spent = _listed(cortex("budget", "--json"))[0]["spent_usd"]
    assert float(str(spent)) > 0
    for words in (LABEL, price):  # without a price, or without a label
        lines = cortex(
            "batch", "in.jsonl", "-o", "free", "--model", "sim", *words, "--job", words[0][2:], "--fresh", "--overwrite"
        ).said()
        assert "as if it were paid" not in lines[0]
    assert _listed(cortex("budget", "--json"))[0]["spent_usd"] == spent
