"""Plots of the claims about tool loops."""

from __future__ import annotations

from typing import Any

FORMS = {"chat": "in a conversation", "control": "behind a tool, in K", "clean": "in code"}
METHODS = {"static": "all tools in every call", "meta": "one tool for all", "fresh": "a fresh call, its own two"}


def chat(axes: Any, found: dict[str, Any]) -> None:
    """Draw tokens, calls and success of one task by the place of its scheduler."""
    rows = found["rows"]
    items = [row["items"] for row in rows]
    for form, label in FORMS.items():
        grows = f"{label}: n^{found['growth'][form]:.2f} at the end"
        axes[0].loglog(items, [row[form]["input_tokens"] for row in rows], "o-", label=grows)
        axes[1].plot(items, [row[form]["calls"] for row in rows], "o-", label=label)
        errors = [row[form]["success_error"] for row in rows]
        axes[2].errorbar(items, [row[form]["success"] for row in rows], errors, fmt="o-", label=label)
    axes[2].plot(items, [row["clean"]["success_expected"] for row in rows], "k:", label="in code, as predicted")
    axes[0].set_xticks(items, map(str, items), minor=False)
    axes[0].tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes[0].set(title="Input tokens of a run without mistakes", xlabel="notes", ylabel="tokens")
    axes[1].set(title="Calls of such a run", xlabel="notes", ylabel="calls")
    axes[2].set(title="Right counts at the end", xlabel="notes", ylabel="share of runs", ylim=(0, 1.03))


def chat_caption(found: dict[str, Any]) -> str:
    """Return the caption."""
    last = found["rows"][-1]
    largest = ", ".join(f"{FORMS[form]} {last[form]['largest_prompt_tokens']:,}" for form in FORMS)
    return (
        f"Read notes, label each, count the labels; the same two tools, the same reader, {last['runs']} runs a point."
        f" Largest prompts at {last['items']} notes, tokens: {largest}."
    )


def surface(axes: Any, found: dict[str, Any]) -> None:
    """Draw the cost of offering more tools than a subtask needs."""
    rows = found["rows"]
    tools = [row["tools"] for row in rows]
    for method, label in METHODS.items():
        axes[0].loglog(tools, [row[method]["tokens_a_call"] for row in rows], "o-", label=label)
        axes[1].semilogx(tools, [row[method]["wrong_per_thousand"] for row in rows], "o-", label=label)
    for axis in axes:
        axis.set_xticks(tools, map(str, tools), minor=False)
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes[0].set(title="Input tokens a call", xlabel="tools there are", ylabel="tokens")
    axes[1].set(title="Uses of a wrong tool", xlabel="tools there are", ylabel="of a thousand")


def surface_caption(found: dict[str, Any]) -> str:
    """Return the caption."""
    first = found["rows"][0]
    return f"A subtask that needs two tools, {found['items']} notes, {first['runs']} runs a point."
