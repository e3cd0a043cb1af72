"""``cortex run rlm`` from the command line: over files, killed and resumed, and refused in one line."""

from __future__ import annotations

import os
from pathlib import Path

from actors.history.catalog import last_state
from actors.journal.journal import StateFolder, StoreError
from tests.cli.cli_runner import started, until

QUESTION = "question=How many of the reviews of K-3 mention a late delivery?"
SIM = ("--model", "sim", "--sim", "error=0")
REVIEWS = 3_000


def reviews(path: str = "reviews.txt", count: int = REVIEWS) -> int:
    """Write them; how many the question is about."""
    lines = [f"Review {n} of K-{n % 9}: {'a late delivery, sadly' if n % 4 else 'it works'}." for n in range(count)]
    Path(path).write_text("\n".join(lines) + "\n")
    return sum(n % 9 == 3 and n % 4 > 0 for n in range(count))


def test_a_question_about_a_file(cortex):
    right = reviews()
    done = cortex("run", "rlm", "reviews.txt", "-p", QUESTION, "-p", "returns=number", *SIM)
    assert (done.code, done.out.strip()) == (0, str(right)), done.err


def test_several_files_are_one_context(cortex):
    right = reviews("a.txt", 90) + reviews("b.txt", 180)
    done = cortex("run", "rlm", "a.txt", "b.txt", "-p", QUESTION, *SIM, "--json")
    assert (done.last["answer"], done.last["calls"]) == (str(right), 3)


def test_killed_in_the_middle_and_resumed_it_gives_the_same_answer_and_pays_for_nothing_twice(cortex):
    reviews()
    slow = (*SIM, "--sim", "latency_ms=400", "--concurrency", "1")
    command = ("run", "rlm", "reviews.txt", "-p", QUESTION, "-p", "returns=number")
    straight = cortex(*command, *SIM, "--job", "straight", "--state", "other", "--json").last
    with started(*command, *slow, "--job", "mine") as child:
        until(lambda: _calls() >= 5)
        child.kill()
        child.wait()
    assert 5 <= _calls() < straight["calls"], "it was to be killed in the middle"
    done = cortex("resume", "mine", *SIM[2:], "--sim", "latency_ms=0", "--json").last
    assert (done["outcome"], done["answer"]) == ("complete", straight["answer"])
    assert straight["paid_calls"] <= done["paid_calls"] <= straight["paid_calls"] + 1  # one in flight at the kill


def _calls() -> int:
    try:
        return last_state(StateFolder(os.environ.get("CORTEX_STATE", ".cortex")), "mine").tally.calls
    except StoreError:
        return 0


def test_what_is_wrong_is_said_in_one_line(cortex):
    reviews(count=9)
    cortex("run", "rlm", "nothing.txt", "-p", QUESTION, *SIM).refused("nothing.txt", "no such file")
    cortex("run", "rlm", "reviews.txt", *SIM).refused("question")
    cortex("run", "rlm", "reviews.txt", "-p", QUESTION, "-p", "returns=poem", *SIM).refused("returns", "poem")
    cortex("run", "rlm", "reviews.txt", "-p", QUESTION, "-p", "turns=none", *SIM).refused("turns")
    Path("empty.txt").write_text(" \n")
    cortex("run", "rlm", "empty.txt", "-p", QUESTION, *SIM).refused("empty.txt", "no text")
    Path("latin.txt").write_bytes(b"caf\xe9")
    cortex("run", "rlm", "latin.txt", "-p", QUESTION, *SIM).refused("latin.txt", "UTF-8")
    done = cortex("run", "rlm", "reviews.txt", "-p", QUESTION, "-p", "turns=0", *SIM)
    assert done.code == 1 and "turns must be 1 or more" in done.err and "Traceback" not in done.err
