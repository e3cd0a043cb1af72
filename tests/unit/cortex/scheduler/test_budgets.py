"""A cluster's budgets: who begins anew under the name of a job that was removed begins with nothing."""

from __future__ import annotations

import msgspec

from actors.limits.budgets import NoteBudgets
from cortex.scheduler.budgets import BudgetRequest
from policies.limits.slices import REMOVED, Budget

AT_S = 86_400.0 * 20_000


class _Notes(dict[str, bytes]):
    def found(self, prefix: str) -> dict[str, bytes]:
        return {name: blob for name, blob in self.items() if name.startswith(prefix)}

    def put(self, name: str, blob: bytes) -> None:
        self[name] = blob


def test_what_a_removed_job_used_stays_used() -> None:
    books = NoteBudgets(_Notes(), lambda: AT_S)
    books.put(Budget("team", "search", "day", 1_000))
    asked = BudgetRequest(job="a", labels={"team": "search"}, day=20_000, day_nusd=0, month_nusd=0)
    books.ask(msgspec.structs.replace(asked, new=True))
    books.ask(msgspec.structs.replace(asked, day_nusd=700, over=True))
    lent = books.ask(msgspec.structs.replace(asked, new=True))
    (held,) = books.read().values()
    assert held.holdings[REMOVED].used_nusd == 700 and lent.slices[0].upto_nusd <= 300
