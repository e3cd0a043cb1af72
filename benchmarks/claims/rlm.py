"""Claims about models that write the scheduler: tokens, wall time, comparison with a peer, saved programs.

Task of growing length: count the reviews (one a line) of a kind. The question to a whole text in one call and the
questions of a program to parts of it use equal words and are answered by the same reasoner.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import cortex
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.programs.saved import case_of, needed, passes
from actors.sandbox.child_pool import Sandbox
from actors.simulator import tokenizer
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.request import TOKENS_PER_MESSAGE
from actors.simulator.settings import SimulatorSettings
from cortex.programs.crystal import crystal
from cortex.programs.rlm import rlm
from cortex.programs.rlm_record import recorded
from cortex.values.limits import Limits

WINDOW = 20_000
"""Tokens of M and of a reply."""
LENGTHS = (100, 400, 1_600, 6_400)
"""Numbers of reviews."""
PRODUCTS = 12
KEYED = "How many of the reviews of K-7 mention a late delivery?"
PLAIN = "How many of the reviews mention a late delivery?"
AT_ONCE = (1, 8, 64)
LATENCY_MS = 100.0
PEER_LATENCIES_MS = (100.0, 500.0)
SEEDS = (1, 2, 3)
RUNS = 11
KEY = "sk-ant-benchmark"
PEER_PYTHON = "CORTEX_RLMS_PYTHON"
"""Variable that names a Python with the package ``rlms``; without it an environment is created."""
_LATE = ("it was a late delivery", "a late delivery once more, sadly", "delivery came late again")
_OTHER = ("it works as it should", "the colour is another one", "delivery was fast", "too late I saw that it is blue")


def reviews(count: int, seed: int) -> tuple[str, dict[str, int]]:
    """Return reviews, one a line, and the right answers."""
    draw = random.Random(seed)
    lines, right = [], {KEYED: 0, PLAIN: 0}
    for number in range(count):
        product, late = draw.randrange(PRODUCTS), draw.random() < 0.4
        text = draw.choice(_LATE if late else _OTHER)
        lines.append(f"Review {number} of K-{product}, customer {draw.randrange(10_000)}: {text}.")
        right[PLAIN] += late
        right[KEYED] += late and product == 7
    return "\n".join(lines), right


@cortex.flow
async def one_shot(ctx: cortex.Context, question: str, context: str) -> float:
    """Return the program that asks about the whole text in one call."""
    return float(await ctx.ask(asked_at_once(question, context), max_tokens=100))


def asked_at_once(question: str, context: str) -> str:
    """Return the prompt of one shot."""
    return f"{question} Answer with a number alone.\n\n<lines>\n{context}\n</lines>"


def _done(program: Any, settings: SimulatorSettings, at_once: int = 64) -> dict[str, Any]:
    model = SimulatedModel(settings)
    bounds = Limits(concurrency=at_once, prompt_tokens_max=WINDOW - 2_000)
    with tempfile.TemporaryDirectory() as state:
        began_s = time.perf_counter()
        ended = cortex.run(program, model=model, state=state, limits=bounds, cluster="inline", progress=False)
        took_s = time.perf_counter() - began_s
    tally = model.provider.tally
    assert not tally.prompts_too_long
    return {
        "answer": ended.answer if ended.outcome == "complete" else None,
        "calls": ended.calls, "input_tokens": tally.input_tokens,
        "tokens": tally.input_tokens + tally.output_tokens, "largest_prompt_tokens": tally.largest_prompt_tokens,
        "wall_s": round(took_s, 3), "why": ended.facts["failed_said"],
    }  # fmt: skip


def _counted_alone(question: str, context: str) -> int:
    """Return the tokens of the prompt of one shot by the simulated provider's count, fitting or not."""
    return tokenizer.count(asked_at_once(question, context)) + TOKENS_PER_MESSAGE


# -- tokens --------------------------------------------------------------------------------------------------------


def tokens(lengths: tuple[int, ...], seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return for each length, question and method: tokens, largest prompt and number of right answers."""
    rows = []
    for length in lengths:
        for name, question in (("keyed", KEYED), ("plain", PLAIN)):
            row: dict[str, Any] = {"reviews": length, "question": name}
            row["needed_at_once"] = _counted_alone(question, reviews(length, seeds[0])[0])
            for method in ("one_shot", "rlm"):
                found, right = [], 0
                for seed in seeds:
                    context, truth = reviews(length, seed)
                    settings = SimulatorSettings(seed=seed, context_window=WINDOW)
                    given = {"question": question, "context": context}
                    program = one_shot(**given) if method == "one_shot" else rlm(**given, returns="number")
                    found.append(_done(program, settings))
                    right += found[-1]["answer"] == truth[question]
                answered = all(each["answer"] is not None for each in found)
                row[method] = {
                    "answered": answered, "right": right, "of": len(seeds),
                    "tokens": round(sum(each["tokens"] for each in found) / len(seeds)) if answered else None,
                    "calls": round(sum(each["calls"] for each in found) / len(seeds), 1),
                    "largest_prompt_tokens": max(each["largest_prompt_tokens"] for each in found),
                    "why": next((each["why"] for each in found if each["why"]), ""),
                }  # fmt: skip
            rows.append(row)
    return rows


# -- wall time -----------------------------------------------------------------------------------------------------


def wall(at_once: tuple[int, ...], subcalls: int) -> list[dict[str, Any]]:
    """Return the wall time of one job for several numbers of concurrent sub-calls; every answer takes equally long."""
    context, truth = reviews(subcalls * 20, 1)
    settings = SimulatorSettings(error=0.0, latency_ms=LATENCY_MS, latency_spread=0.0)
    rows = []
    for number in at_once:
        found = _done(rlm(question=PLAIN, context=context, returns="number"), settings, number)
        assert found["answer"] == truth[PLAIN], found
        rows.append({"at_once": number, "subcalls": found["calls"] - 1, "wall_s": found["wall_s"]})
    return rows


# -- the peer ------------------------------------------------------------------------------------------------------


@contextmanager
def provider(latency_ms: float) -> Iterator[str]:
    """Start a simulated provider over HTTP in its own process; yield its URL."""
    settings = ("error=0", f"latency_ms={latency_ms}", "latency_spread=0")
    command = [sys.executable, "-m", "actors.cli", "simulate", *(part for each in settings for part in ("--set", each))]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child.stdout.readline().rsplit(maxsplit=1)[-1]
    finally:
        child.terminate()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def peer_python() -> tuple[str, str]:
    """Return a Python that has ``rlms``, or the reason why there is none."""
    if given := os.environ.get(PEER_PYTHON):
        return given, ""
    folder = Path(tempfile.gettempdir()) / "cortex-benchmark-rlms"
    python = folder / "bin" / "python"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "rlms"]
        subprocess.run(install, check=True, capture_output=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        return "", f"no environment with rlms: {type(error).__name__} (or name one in {PEER_PYTHON})"
    return str(python), ""


def _counted(url: str, answer: Any, wall_s: float) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/_sim/stats", timeout=10) as stats:
        text = msgspec.json.decode(stats.read())
    return {
        "answer": answer, "calls": text["worked"], "input_tokens": text["input_tokens"],
        "output_tokens": text["output_tokens"], "largest_prompt_tokens": text["largest_prompt_tokens"],
        "wall_s": round(wall_s, 3),
    }  # fmt: skip


def side_by_side(length: int, latency_ms: float) -> dict[str, Any]:
    """Run both packages on one simulated model over HTTP; return the provider's count of calls and tokens, and wall
    time."""
    context, truth = reviews(length, 1)
    found: dict[str, Any] = {"reviews": length, "latency_ms": latency_ms, "right": truth[PLAIN]}
    os.environ.setdefault("ANTHROPIC_API_KEY", KEY)
    for name in ("warm", "cortex"):
        with provider(latency_ms) as url, tempfile.TemporaryDirectory() as state:
            given = reviews(20, 1)[0] if name == "warm" else context
            program = rlm(question=PLAIN, context=given, returns="number")
            began_s = time.perf_counter()
            ended = cortex.run(
                program, model="simulated", base_url=url, state=state, cluster="inline", progress=False, concurrency=64
            )
            if name != "warm":  # the first call imports the client
                found[name] = _counted(url, ended.answer, time.perf_counter() - began_s)
    python, skipped = peer_python()
    if skipped:
        return found | {"skipped": skipped}
    with provider(latency_ms) as url, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "context.txt").write_text(context)
        script = Path(folder) / "peer.py"  # away from our modules, some of which are named like standard ones
        script.write_text(Path(__file__).with_name("peer_rlms.py").read_text())
        environment = {**os.environ, "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY}
        environment.pop("PYTHONPATH", None)
        ran = subprocess.run(
            [python, str(script), str(Path(folder) / "context.txt"), PLAIN], env=environment, cwd=folder,
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        if ran.returncode:
            return found | {"skipped": f"rlms failed: {ran.stderr.strip().splitlines()[-1:]}"}
        text = msgspec.json.decode(ran.stdout.splitlines()[-1])
        found["rlms"] = _counted(url, text["answer"], text["wall_s"]) | {"version": text["version"]}
    return found


# -- programs that are kept ----------------------------------------------------------------------------------------


def kept(runs: int, length: int) -> list[dict[str, Any]]:
    """Return calls and tokens of the first run, which writes a program, of runs of that program, and of rewriting each
    time."""
    rows: list[dict[str, Any]] = []
    codes: tuple[str, ...] = ()
    for run in range(1, runs + 1):
        context, truth = reviews(length, run)
        settings = SimulatorSettings(error=0.0, seed=run, context_window=WINDOW)
        written = _done(rlm(question=KEYED, context=context, returns="number"), settings)
        found = written
        if run == 1:
            codes = _saved(context, settings)
        else:
            found = _done(crystal(pieces=codes, question=KEYED, context=context, returns="number"), settings)
        rows.append({
            "run": run, "calls": found["calls"], "tokens": found["tokens"], "right": found["answer"] == truth[KEYED],
            "written_each_time": {"calls": written["calls"], "tokens": written["tokens"]},
        })  # fmt: skip
    return rows


def _saved(context: str, settings: SimulatorSettings) -> tuple[str, ...]:
    """Return the program that `cortex program save` keeps of a run, tested with the run's recorded calls."""
    program = rlm(question=KEYED, context=context, returns="number")
    sandbox = Sandbox()
    try:
        with tempfile.TemporaryDirectory() as state:
            model = SimulatedModel(settings)
            job = cortex.run(program, model=model, state=state, cluster="inline", progress=False).job
            record = recorded(program, last_state(StateFolder(state), job))
        case = case_of(record, job, 1)
        codes = needed(sandbox, record, case)
        assert not passes(sandbox, codes, "number", case)
        return codes
    finally:
        sandbox.close()


def measure(small: bool = False) -> dict[str, Any]:
    """Return all measurements of this module, and whether the claims hold."""
    rows = tokens((100, 400) if small else LENGTHS, SEEDS[:1] if small else SEEDS)
    times = wall((1, 8) if small else AT_ONCE, 8 if small else 64)
    peers = [] if small else [side_by_side(1_280, latency_ms) for latency_ms in PEER_LATENCIES_MS]
    runs = kept(3 if small else RUNS, 200 if small else 1_000)
    keyed = [row for row in rows if row["question"] == "keyed" and row["one_shot"]["answered"]]
    beyond = [row for row in rows if not row["one_shot"]["answered"]]
    first, last = rows[0]["rlm"]["largest_prompt_tokens"], rows[-1]["rlm"]["largest_prompt_tokens"]
    holds = {
        "rlm takes fewer tokens than one shot where code can leave something out, from 400 reviews on": all(
            row["rlm"]["tokens"] < row["one_shot"]["tokens"] for row in keyed if row["reviews"] >= 400
        ),
        "rlm is right at lengths that do not fit in one call, up to 1,600 reviews": small
        or (bool(beyond) and all(row["rlm"]["right"] == row["rlm"]["of"] for row in beyond if row["reviews"] <= 1_600)),
        "its largest prompt does not grow with the text": last < 1.5 * first,
        "wall time falls as sub-calls go in parallel": all(
            then["wall_s"] < before["wall_s"] for before, then in itertools.pairwise(times)
        ),
        "a kept program makes no writing call": all(
            row["calls"] == row["written_each_time"]["calls"] - 1 and row["right"] for row in runs[1:]
        ),
        "and takes fewer tokens than writing it each time": all(
            row["tokens"] < row["written_each_time"]["tokens"] for row in runs[1:]
        ),
    }  # fmt: skip
    for peer in peers:
        names = [name for name in ("cortex", "rlms") if name in peer]
        right = all(float(peer[name]["answer"]) == peer["right"] for name in names)
        holds[f"{' and '.join(names)} give the right answer at {peer['latency_ms']:g} ms a call"] = right
    return {"window_tokens": WINDOW, "tokens": rows, "wall": times, "peers": peers, "kept": runs, "holds": holds}
