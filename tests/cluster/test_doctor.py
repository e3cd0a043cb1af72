"""``cortex doctor --cluster``: the nodes of a real Ray are asked what they have installed, and nothing stays there."""

from __future__ import annotations

import json

import pytest

from tests.cli.cli_runner import ended, environment, started
from tests.cluster.cluster_processes import Head

pytestmark = pytest.mark.cluster


@pytest.mark.long
def test_every_node_tells_its_releases(head: Head, tmp_path):
    more = environment(CORTEX_STATE=str(tmp_path / "state"))
    with started("doctor", "--model", "sim", "--cluster", head.address, "--json", env=more) as child:
        done = ended(child, 60.0)
    facts = {each["check"]: each for each in json.loads(done.out)["findings"]}
    assert (facts["cluster"]["state"], done.code) == ("ok", 0), done
    assert f"1 node of {head.address} with Ray " in facts["cluster"]["said"]
