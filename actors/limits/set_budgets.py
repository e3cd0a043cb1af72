"""Names of the budgets that users have set in a state folder, kept apart from the budgets: where these are gone as a
whole, with their checksums, nothing else would tell that they were there, and their labels would be bounded no more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from actors.journal.journal import StateFolder, StoreError
from policies.limits.slices import DAY, MONTH, Budget

KIND: Final = "budget_names"
"""Kind of the note."""
_decoder = msgspec.json.Decoder(list[str])


def note(folder: StateFolder, *, added: Collection[str] = (), removed: Collection[str] = ()) -> None:
    """Note which budgets were set, and which are removed by a user. Raises ``StoreError``."""
    while True:
        before = folder.note(KIND, "")
        names = sorted(({*_names(before), *added}) - {*removed})
        if folder.swap_note(KIND, "", before, msgspec.json.encode(names)):
            return


def lost(folder: StateFolder, there: Collection[str]) -> list[str]:
    """Return the names of the budgets that were set and are not among those that are there. Raises ``StoreError``."""
    return sorted({*_names(folder.note(KIND, ""))} - {*there})


def refuse_lost(folder: StateFolder, there: Collection[str], labels: Mapping[str, str]) -> None:
    """Raise ``StoreError`` if a budget that is gone covers a job with these labels."""
    covering = {Budget(*each, period=period, cap_nusd=0).name for each in labels.items() for period in (DAY, MONTH)}
    if gone := [name for name in lost(folder, there) if name in covering]:
        raise StoreError(lost_words(folder, gone[0]))


def lost_words(folder: StateFolder, name: str) -> str:
    """Return what is wrong with a budget that is gone, and what to do."""
    label, _, period = name.rpartition(" a ")
    again = f"`cortex budget {label} --max-cost-per-{period} USD`"
    gone = f"the budget {name} was set in {folder.address} and is gone: restore the budgets from a backup"
    return f"{gone}, or set it again by {again}, or remove it by `cortex budget {label} --remove`"


def _names(blob: bytes | None) -> list[str]:
    try:
        return _decoder.decode(blob) if blob else []
    except msgspec.DecodeError:
        return []  # the budgets themselves have checksums
