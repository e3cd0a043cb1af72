"""Text lines for the entries of a goal's history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from actors.common.units import clock
from policies.estimates.price import usd_text

Facts = dict[str, Any]
Lines = Iterator[tuple[str, str]]
"""Pairs of a label (may be empty) and a text."""

def json_text(value: Any) -> str:
    """Return a value on one line: a text as it is, any other value as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def money(usd: float | None) -> str:
    """Return an amount of USD as text."""
    return "an unknown price" if usd is None else usd_text(round(usd * 1e9))


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def heading(entry: Facts) -> str:
    """Return the one-line description of an entry."""
    made = _HEADINGS.get(entry["what"])
    return made(entry) if made is not None else entry["what"].replace("_", " ")


def details(entry: Facts, seen: dict[str, int]) -> Lines:
    """Yield the further lines of an entry. ``seen``: requests already shown, with their turns."""
    made = _DETAILS.get(entry["what"])
    if made is not None:
        yield from made(entry)
    if "text" in entry:
        yield from _request(entry, seen)
    reply = entry.get("reply")
    if reply:
        yield from _reply(reply)


# -- headings ------------------------------------------------------------------------------------------------------


def _failure(entry: Facts) -> str:
    status = f" (HTTP {entry['status']})" if entry.get("status") else ""
    return f"{entry.get('kind', '')}{status}: {entry.get('message', '')}"


def _broke(entry: Facts) -> str:
    return f"attempt {entry['attempt']} failed: {_failure(entry)}"


def _answered(entry: Facts) -> str:
    by = f" by {entry['by']}" if entry["by"] else ""
    times = f"in {entry['elapsed_s']:.3f} s, after {entry['waited_s']:.3f} s there"
    return f"attempt {entry['attempt']} was answered{by} {times}"


def _recalled(entry: Facts) -> str:
    if not entry.get("paid_by"):
        return "answered from memory: another job had paid for the same question"
    when = f" at {clock(entry['paid_at_s'])}" if entry["paid_at_s"] is not None else ""
    turn = f"{when}, in turn {entry['paid_in_turn']:,}"
    return f"answered from memory: {entry['paid_by']} had paid for the same question{turn}"


def _made(entry: Facts) -> str:
    place = f", awaited at {entry['awaited_at']}" if entry.get("awaited_at") else ""
    below = f" below goal {entry['parent']}" if entry["parent"] else ""
    return f"made by {entry['by']}: kind {entry['kind']}{below}{place}"


def _retry(entry: Facts) -> str:
    if entry["hold"]:
        return f"decided: not the fault of the goal, which stays open: {entry['rule']}"
    if not entry["again"]:
        return f"decided: no further attempt: {entry['rule']}"
    return f"decided: {'a deferred retry' if entry['deferred'] else 'a retry'}: {entry['rule']}"


def _resample(entry: Facts) -> str:
    next_ = f"sample {entry['next_sample']} is next" if entry["next_sample"] >= 0 else "no further sample is asked"
    return f"decided: the reply is refused and discarded, {next_}: {entry['why']}"


def _ended(entry: Facts) -> str:
    failure = entry["failure"]
    why = f": {_failure(failure)}" if failure and entry["status"] == "failed" else ""
    return f"the goal is {entry['status']}{why}"


def _join(entry: Facts) -> str:
    kind = f"{entry['join']}({entry['n']})" if entry["n"] else entry["join"]
    counts = f"{entry['resolved']} resolved and {entry['failed']} failed of {entry['of']} children"
    return f"decided: its join {kind} is {entry['verdict']}{', at its deadline' if entry['late'] else ''}: {counts}"


def _tally(entry: Facts) -> str:
    counts = ", ".join(f"{each['votes']} for {json_text(each['for'])[:60]!r}" for each in entry["counts"])
    more = f"{entry['more_needed']} more votes needed" if entry["more_needed"] else "decided"
    return f"tally: {counts}; ahead by {entry['ahead_by']}, must be by {entry['must_be_ahead_by']}: {more}"


def _observed(entry: Facts) -> str:
    by = f" at {entry['by']}" if entry["by"] else ""
    value = json_text(entry["value"])[:500]
    came = f"failed: {_failure(entry['failure'])}" if entry["failure"] else f"returned {value}"
    return f"its tool run{by} {came} ({entry['elapsed_s']:.3f} s)"


def _returned(entry: Facts) -> str:
    came = f"ended: {_failure(entry['failure'])}" if entry["failure"] else f"answered {json_text(entry['value'])[:500]}"
    return f"its child job {came}; it cost {money(entry['known_usd'])}, {entry['tokens']:,} tokens"


def _program(entry: Facts) -> str:
    more = f" and {entry['more_changes']} more" if entry.get("more_changes") else ""
    return "the program: " + ", ".join(map(_change, entry["changes"])) + more


_CHANGES = {
    "runtool": "run tool", "resolve": "resolves it", "fail": "fails it", "goal": "a new goal", "item": "a new item",
}  # fmt: skip


def _change(change: Facts) -> str:
    text = str(_CHANGES.get(change["change"]) or change["change"])
    for name in ("kind", "why", "name", "tool", "join", "text"):
        if change.get(name):
            text += f" {change[name]!r}"
    if change.get("value") is not None:
        text += f" {json_text(change['value'])[:200]}"
    return str(text)


def _job(entry: Facts) -> str:
    facts = {
        "rejoined": "another run continues the job",
        "resumed": "the job is resumed",
        "limits_set": "limits set",
    }
    by = f" by {entry['who']}" if entry.get("who") else ""
    return facts.get(entry["what"], f"the job is told to {entry.get('how', 'stop')}") + by


def _too_large(entry: Facts) -> str:
    if entry["as_given"]:
        return f"decided: too large, and a fixed prompt cannot be shortened: {entry['message']}"
    return f"decided: too large, for the {entry['too_large']}. time: back to select: {entry['message']}"


def _asks(entry: Facts) -> str:
    role = f" as {entry['role']}" if entry["role"] else ""
    return f"asked: call {entry['call']}, attempt {entry['attempt']}, of {entry['route']}{role}"


def _backoff(entry: Facts) -> str:
    named = entry["retry_after_s"]
    least = f", and at least the {named:g} s that the provider named" if named is not None else ""
    return f"decided: wait {entry['wait_s']:.3f} s, drawn {entry['draw']:.4f}{least}"


_HEADINGS: dict[str, Callable[[Facts], str]] = {
    "made": _made, "broke": _broke, "answered": _answered, "recalled": _recalled, "retry": _retry, "ended": _ended,
    "resample": _resample, "join": _join, "tally": _tally, "observed": _observed, "returned": _returned,
    "program": _program, "too_large": _too_large,
    "rejoined": _job, "resumed": _job, "limits_set": _job, "stopped": _job,
    "asked": _asks, "backoff": _backoff,
    "held": lambda e: f"not asked yet: {e['why']}",
    "shares": lambda e: f"asked: goal {e['with_goal']} is asking the same at this moment; both take its answer",
    "over_budget": lambda e: "decided: not asked, the next call could pass the cap",
    "blocked": lambda e: f"decided: {e['route']} is blocked: {_failure(e)}",
    "paused": lambda e: f"decided: the job pauses: {_failure(e)}",
    "refused": lambda e: f"decided: the provider refused it; only `cortex retry` asks it again: {_failure(e)}",
    "given_up": lambda e: f"decided: the call has failed for good: {_failure(e)}",
    "goes_elsewhere": lambda e: f"decided: the call moves to a fallback: {e['why'] or 'its route may not be asked'}",
    "hedged": lambda e: f"decided: asked a second time after {e['waited_s']:.3f} s without an answer",
    "left_to_hedge": lambda e: f"decided: wait for attempt {e['attempt']}, which is in flight",
    "dropped": lambda e: f"attempt {e['attempt']} was answered too late, or again: counted and dropped",
    "waits_for_prefix": lambda e: f"not asked yet: goal {e['ahead_goal']} goes ahead with the same prefix",
    "ballot": lambda e: f"a vote for {json_text(e['for'])[:200]!r}; {e['still_out']} of this round are out",
    "round": lambda e: f"votes are asked for: goals {json_text(e['votes'])[1:-1]}; {e['must_be_ahead_by']} ahead wins",
    "tool_failed": lambda e: f"decided: {'the tool is run again' if e['again'] else 'the tool is not run again'}",
    "runs_tool": lambda e: f"runs the tool {e['tool']} with {json_text(e['arguments'])[:500]}",
    "launches": lambda e: f"begins the child job {e['job']} ({e['program']}): see `cortex inspect {e['job']}`",
    "abandons": lambda e: f"attempt {e['attempt']} is no longer awaited",
    "told": lambda e: f"{e['who']} answered {e['name']}: {json_text(e['value'])[:500]}",
    "written_down": lambda e: f"made by a flow: kind {e['kind']}, {json_text(e['value'])[:500]}",
    "read": lambda e: f"row {e['row']} was read",
    "row_refused": lambda e: f"refused before it was asked: {e['why']}",
    "intended": lambda e: f"goes to the provider in submission {e['number']}, with {e['requests'] - 1:,} others",
    "submitted": lambda e: f"submission {e['number']} is the message batch {e['name']}",
    "collected": lambda e: f"all results of submission {e['number']} are read",
}  # fmt: skip


# -- details -------------------------------------------------------------------------------------------------------


def _asked(entry: Facts) -> Lines:
    for each in entry["passed_over"]:
        yield "passed", f"{each['route']}: {_leave(each['why'])}"
    yield "leave", _leave(entry["leave"]) + f"; {entry['in_flight']:,} of {entry['concurrency']:,} calls in flight"
    yield "money", _ledger(entry["ledger"], entry["reserved"])
    bound = f"at most {entry['prompt_tokens_bound']:,} tokens of M {entry.get('prompt_tokens_max', 0):,}"
    reply = f"reply at most {entry['output_tokens_max']:,}"
    above = entry["prompt_tokens_bound"] > entry.get("prompt_tokens_max", 0) > 0
    counter = " (above it, so that the provider's own counter decides at the branch)" if above else ""
    yield "bound", f"{bound}{counter}; {reply}; times out after {entry.get('timeout_s', 0):g} s"
    yield from _prompt(entry)


def _leave(leave: Facts) -> str:
    text = f"{leave['in_flight']:,} of {leave['permits']:,} permits in use"
    if leave["held_s"]:
        text += f", held back {leave['held_s']:g} s by the provider"
    return text + "".join(f", {leave[name]}" for name in ("blocked", "why") if leave[name])


def _ledger(ledger: Facts, charge: Facts) -> str:
    cap = f" of {money(ledger['cap_usd'])}" if ledger["cap_usd"] is not None else ""
    text = f"{money(charge['usd'])} for it at most; known {money(ledger['known_usd'])} + assumed "
    text += f"{money(ledger['assumed_usd'])} + reserved {money(ledger['reserved_usd'])}{cap}"
    if ledger["cap_tokens"] is not None:
        used = ledger["known_tokens"] + ledger["assumed_tokens"] + ledger["reserved_tokens"]
        text += f"; {charge['tokens']:,} tokens for it at most, {used:,} of {ledger['cap_tokens']:,} committed"
    return text


def _prompt(entry: Facts) -> Lines:
    prompt = entry.get("prompt")
    if not prompt:
        if entry.get("constructor"):
            yield "prompt", f"constructor {entry['constructor']}"
        return
    sizes = f"{prompt['bytes']:,} bytes, about {prompt['tokens_estimated']:,} tokens"
    sizes += f", at most {prompt['tokens_bound']:,}"
    yield "prompt", f"constructor {prompt['constructor']}: {_many(len(prompt['parts']), 'part')}, {sizes}"
    if prompt["left_out"] or not prompt["fits"]:
        before = f"about {prompt['tokens_estimated_before']:,} tokens, at most {prompt['tokens_bound_before']:,}"
        fate = "cut to fit" if prompt["fits"] else "does not fit"
        bounds = f"M {prompt['prompt_tokens_max']:,} and {prompt['parts_max']} parts"
        yield "fit", f"{fate}: it was {before}, against {bounds}"
    for part in prompt["parts"]:
        rank = f" priority {part['priority']}, {part['rule']}" if "priority" in part else ""
        fate = part["fate"] if part["fate"] != "cut" else f"cut to {part['bytes_sent']:,} bytes"
        text = f"{part['role']:<11}{part['bytes']:>9,} bytes {part['tokens']:>8,} tokens{rank}: {fate}"
        yield "part", text + f" {part['title']!r}" * bool(part["title"])
    for title in prompt["left_out"]:
        yield "left out", title


def _retry_numbers(entry: Facts) -> Lines:
    yield (
        "saw",
        (
            f"{entry['failed_attempts']} failed attempts of {entry['attempts_max']} at most"
            f" ({entry['throttled_attempts']} throttled of {entry['throttled_attempts_max']}); retry budget: "
            f"{entry['retries_spent']:,} spent of {entry['retries_allowed']:,} that {entry['successes']:,} successes"
            " allow"
        ),
    )


def _hedge_numbers(entry: Facts) -> Lines:
    yield (
        "saw",
        (
            f"hedges go out after {entry['hedge_after_s']:g} s; retry budget: {entry['retries_spent']:,} spent of "
            f"{entry['retries_allowed']:,} that {entry['successes']:,} successes"
            " allow"
        ),
    )


def _over_budget(entry: Facts) -> Lines:
    yield "saw", _ledger(entry["ledger"], entry["next"])


def _times(entry: Facts) -> Lines:
    by = f", at branch {entry['by']}" if entry["by"] else ""
    route = f", of {entry['route']}" if entry.get("route") else ""
    yield "took", f"{entry['elapsed_s']:.3f} s, after {entry['waited_s']:.3f} s of waiting there{by}{route}"


_DETAILS: dict[str, Callable[[Facts], Lines]] = {
    "asked": _asked, "retry": _retry_numbers, "hedged": _hedge_numbers, "over_budget": _over_budget, "broke": _times,
    "round": _prompt, "too_large": _prompt,
    "resample": lambda e: iter([("saw", f"{e['resamples']} refused of {e['resamples_max']} that may be")]),
    "made": lambda e: iter([("value", json_text(e["value"])[:2_000])] if e["value"] is not None else []),
    "ended": lambda e: iter([("answer", json_text(e["answer"])[:2_000])] if e["answer"] is not None else []),
    "refused": lambda e: iter([("saw", f"{e['alike']} alike in a row before it; {e['alike_max']} block the route")]),
}  # fmt: skip


def _request(entry: Facts, seen: dict[str, int]) -> Lines:
    body = entry["request"]
    if body in seen:
        yield "sent", f"the same request as in turn {seen[body]:,}"
        return
    seen[body] = entry["turn"]
    for message in entry["text"]["messages"]:
        yield message["role"], message["text"]
    rest = {name: value for name, value in entry["text"]["parameters"].items() if name != "tools"}
    tools = entry["text"]["parameters"].get("tools")
    text = json_text(rest) + (f"; {len(tools)} tools" if isinstance(tools, list) else "")
    yield "with", text


def _reply(reply: Facts) -> Lines:
    yield "reply", reply["text"]
    tokens = "no token count: charged at its worst case"
    if reply["input_tokens"] is not None:
        tokens = f"{reply['input_tokens']:,} tokens in, {reply['output_tokens']:,} out"
    cached = f", {reply['cache_read_tokens']:,} read from the provider's cache" if reply["cache_read_tokens"] else ""
    paid = f", {money(reply['cost_usd'])}" if reply["cost_usd"] is not None else ""
    model, stop_reason = reply["model"] or "a model without a name", reply["stop_reason"] or "no stop reason"
    yield "usage", f"{tokens}{cached}{paid}; {model}, {stop_reason}"
