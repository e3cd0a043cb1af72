"""The commands about money that belongs to more than one job, and their arguments: budgets of labels, and who spent
what."""

from __future__ import annotations

from typing import Annotated

import typer

from actors.cli.options.options import LOOKING, Options, takes


@takes(*LOOKING, "cluster", "limits")
def budget(
    options: Options,
    label: Annotated[
        str, typer.Argument(help="of the jobs with this --label; none: list all budgets", metavar="NAME=VALUE")
    ] = "",
    per_day: Annotated[
        str, typer.Option("--max-cost-per-day", help="what they may cost together, each day in UTC", metavar="USD")
    ] = "",
    per_month: Annotated[
        str, typer.Option("--max-cost-per-month", help="the same for each calendar month in UTC", metavar="USD")
    ] = "",
    remove: Annotated[bool, typer.Option("--remove", help="take the budgets of the label away")] = False,
) -> int:
    """Bound what all jobs of a label cost together, a day or a month, also while they run; alone: list the budgets."""
    from actors.cli.control.budget import budget as put

    return put(label, {"day": per_day, "month": per_month}, remove, options)


@takes(*LOOKING)
def costs(
    options: Options,
    by: Annotated[
        str, typer.Option("--by", help="a label's name, or job (default), or model", metavar="NAME")
    ] = "job",
    since: Annotated[
        str, typer.Option("--since", help="only what was spent since: 7d, 12h, or an ISO 8601 time", metavar="WHEN")
    ] = "",
) -> int:
    """Show what the jobs of the state folder cost, by label; removed and forgotten ones are counted too."""
    from actors.cli.admin.costs import costs as show

    return show(by, since, options)


COMMANDS = {"budget": budget, "costs": costs}
