"""``python -m tests.adversary [--short] [--only KIND] [--name TEXT]``: attacks and their verdicts, a line each."""

from __future__ import annotations

import argparse
import sys

from tests.adversary.verdicts import KINDS, Row, attacks_of, line, summary, tried


def main() -> int:
    """Try all; return 1 if a promise did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversary", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few attacks of each kind")
    parser.add_argument("--only", choices=KINDS, action="append", help="attacks of this kind; may be repeated")
    parser.add_argument("--name", default="", help="attacks with this text in their names")
    given = parser.parse_args()
    rows = []
    for each in attacks_of(given.only or KINDS, given.short):
        if given.name not in each.name:
            continue
        rows.append(each if isinstance(each, Row) else tried(each))
        print(line(rows[-1]), flush=True)
    print(summary(rows), flush=True)
    return 1 if any(row.held is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
