"""``costs``: costs of the jobs of a state folder, by label, job or model."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import msgspec

from actors.cli.jobs.settings import named_folder
from actors.cli.options.errors import COMPLETE, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.common.text_table import aligned
from actors.common.units import clock, duration_s
from actors.history.costs import CostTotals, JobCost, bills
from actors.journal.state_folder import advised
from policies.estimates.price import usd, usd_text

WITHOUT = "(none)"
"""Row name for jobs without the label."""


def costs(by: str, since: str, options: Options) -> int:
    """Run ``cortex costs`` and return the exit code. Money counts at the time the journal recorded it, not at the job's
    start."""
    now_s = time.time()
    since_s = _since(since.strip(), now_s)
    folder = named_folder(options)
    found, unread = bills(folder, since_s)
    found = [each for each in found if not since_s or each.spent != CostTotals()]
    rows: dict[str | None, list[JobCost]] = {}
    for each in found:
        rows.setdefault(_key(by, each), []).append(each)
    entries = [_facts(by, key, some) for key, some in rows.items()]
    entries.sort(key=lambda row: (-row["cost_usd"] - row["cost_assumed_usd"], str(row[by])))
    total = _facts(by, None, found)
    del total[by]
    unpriced = sorted(each.job for each in found if not each.priced)
    if options.as_json:
        facts = {"by": by, "since_s": since_s, "until_s": now_s, "costs": entries, "total": total}
        print(msgspec.json.encode(facts | {"unpriced": unpriced, "unreadable": unread}).decode())
        return COMPLETE
    if found:
        _print(by, entries, total)
    else:
        print_error(f"nothing was spent in {folder.address}" + (f" since {clock(since_s)}" if since_s else ""))
    if by not in ("job", "model") and found and not any(by in each.labels for each in found):
        names = sorted({name for each in found for name in each.labels})
        print_error(
            f"no job has a label {by!r}: " + (f"labels are {', '.join(names)}" if names else "no job has any label")
        )
    if unpriced:
        print_error(f"no price is known for calls of {_some(unpriced)}: their tokens are counted, their money is not")
    if unread:
        print_error(f"jobs that cannot be read are not counted (see {advised(folder, 'jobs')}): {_some(unread)}")
    return COMPLETE


def _since(text: str, now_s: float) -> float:
    if not text:
        return 0.0
    if text.isdecimal():  # a bare number means days to people, and seconds to the parser
        raise CommandError(f"--since {text!r} has no unit: write {text}d, {text}h, or 2026-11-01 (ISO 8601)")
    try:
        return now_s - duration_s(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise CommandError(f"--since {text!r}: write 7d, 12h, or 2026-11-01 (ISO 8601)") from None


def _key(by: str, bill: JobCost) -> str | None:
    if by in ("job", "model"):
        return str(getattr(bill, by))
    return bill.labels.get(by)


def _facts(by: str, key: str | None, some: list[JobCost]) -> dict[str, Any]:
    spent = CostTotals()
    for each in some:
        spent.add(each.spent)
    return {
        by: key, "cost_usd": usd(spent.known_nusd), "cost_assumed_usd": usd(spent.assumed_nusd), "rows": spent.rows,
        "calls": spent.calls, "input_tokens": spent.input_tokens, "output_tokens": spent.output_tokens,
        "jobs": len({(each.job, each.gone) for each in some}),
    }  # fmt: skip


def _print(by: str, entries: list[dict[str, Any]], total: dict[str, Any]) -> None:
    lines: list[tuple[str, ...]] = [(by.upper(), "COST", "ROWS", "CALLS", "TOKENS IN", "TOKENS OUT", "JOBS")]
    lines += [_line(row[by] or WITHOUT, row) for row in entries]
    lines += [_line("total", total)] if len(entries) > 1 else []
    print("\n".join(aligned(lines, right=range(1, len(lines[0])))))


def _line(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    known, assumed = round(row["cost_usd"] * 1e9), round(row["cost_assumed_usd"] * 1e9)
    money = usd_text(known) + (f" to {usd_text(known + assumed)}" if assumed else "")
    counts = (row["rows"], row["calls"], row["input_tokens"], row["output_tokens"], row["jobs"])
    return name, money, *(f"{count:,}" for count in counts)


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
