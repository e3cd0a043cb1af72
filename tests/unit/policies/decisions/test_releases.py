"""What two sets of versions mean: whether a driver and a node of its cluster fit together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from policies.decisions.releases import InstalledRelease, differences

AGREEING = ("anthropic", "msgspec")
HERE = InstalledRelease(
    ray="2.60.0", python="3.11.7", cortex="0.9.0", packages={"anthropic": "2.12.0", "msgspec": "0.22.0", "boto3": "1.40"}
)  # fmt: skip


def there(packages: Mapping[str, str] = {}, **changed: Any) -> InstalledRelease:
    return msgspec.structs.replace(HERE, packages={**HERE.packages, **packages}, **changed)


@pytest.mark.parametrize(
    ("node", "needs", "told"),
    [
        (there(), (), ()),
        (there(), ("boto3",), ()),
        (there(ray="2.59.0"), (), ("Ray 2.59.0, here 2.60.0",)),
        (there(python="3.12.1"), (), ("Python 3.12.1, here 3.11.7",)),
        (there(python="3.11.9"), (), ()),
        (there(python="3.1.7"), (), ("Python 3.1.7, here 3.11.7",)),
        (there(cortex="0.8.0"), (), ("cortex 0.8.0, here 0.9.0",)),
        (there({"anthropic": "2.13.1"}), (), ()),
        (there({"anthropic": "1.9.0"}), (), ("anthropic 1.9.0, here 2.12.0",)),
        (there({"msgspec": "0.22.9"}), (), ()),
        (there({"msgspec": "0.21.0"}), (), ("msgspec 0.21.0, here 0.22.0",)),
        (there({"msgspec": "1.0.0"}), (), ("msgspec 1.0.0, here 0.22.0",)),
        (there({"boto3": ""}), (), ()),
        (there({"boto3": ""}), ("boto3",), ("no boto3, which this job needs there",)),
        (there({"boto3": "", "psycopg": ""}), ("boto3", "psycopg"), ("no boto3, psycopg, which this job needs there",)),
        (there(ray="2.59.0", cortex="0.8.0"), (), ("Ray 2.59.0, here 2.60.0", "cortex 0.8.0, here 0.9.0")),
    ],
)  # fmt: skip
def test_what_keeps_a_job_from_running_on_a_node(
    node: InstalledRelease, needs: tuple[str, ...], told: tuple[str, ...]
) -> None:
    assert differences(HERE, node, AGREEING, needs) == told


@pytest.mark.parametrize("needs", [(), ("boto3",)])
def test_what_was_not_told_is_held_against_nobody(needs: tuple[str, ...]) -> None:
    assert differences(HERE, InstalledRelease(), AGREEING, needs) == ()
    assert differences(InstalledRelease(), HERE, AGREEING, needs) == ()
