"""Commands about money of several jobs, and their arguments: budgets of labels, and costs by label."""

from __future__ import annotations

from typing import Annotated

import typer

from actors.cli.options.options import LOOKING, Options, takes


@takes(*LOOKING, "cluster", "limits")
def budget(
    options: Options,
    label: Annotated[
        str, typer.Argument(help="label of the jobs; none: list all budgets", metavar="NAME=VALUE")
    ] = "",
    per_day: Annotated[
        str, typer.Option("--max-cost-per-day", help="cap on their cost together, each day in UTC", metavar="USD")
    ] = "",
    per_month: Annotated[
        str, typer.Option("--max-cost-per-month", help="the same for each calendar month in UTC", metavar="USD")
    ] = "",
    remove: Annotated[bool, typer.Option("--remove", help="remove the budgets of the label")] = False,
) -> int:
    """Limit the cost of all jobs of a label together, a day or a month, also while they run; without arguments: list
    budgets."""
    from actors.cli.control.budget import budget as put

    return put(label, {"day": per_day, "month": per_month}, remove, options)


@takes(*LOOKING)
def costs(
    options: Options,
    by: Annotated[
        str, typer.Option("--by", help="a label's name, or job (default), or model", metavar="NAME")
    ] = "job",
    since: Annotated[
        str, typer.Option("--since", help="only costs since then: 7d, 12h, or an ISO 8601 time", metavar="WHEN")
    ] = "",
) -> int:
    """Show the cost of the jobs of the state folder, by label; removed and forgotten jobs are included."""
    from actors.cli.admin.costs import costs as show

    return show(by, since, options)


COMMANDS = {"budget": budget, "costs": costs}
