"""A variable that is near to an option's, and is none, is told; what is somebody else's is not."""

from __future__ import annotations

import pytest

from actors.cli.options.environment_check import misspelt
from actors.cli.options.option_specs import DECLARED


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CORTEX_MAX_COTS", "CORTEX_MAX_COST"),
        ("CORTEX_MAXCOST", "CORTEX_MAX_COST"),
        ("CORTEX_CONCURENCY", "CORTEX_CONCURRENCY"),
    ],
)
def test_a_variable_with_a_letter_off_is_told_with_the_one_that_is_meant(name, meant):
    assert misspelt({name: "5"}) == f"{name} is set, and is no option: write {meant}, or unset it"


def test_options_and_what_others_set_are_left_alone():
    options = {str(option.envvar): "1" for _, option in DECLARED.values()}
    assert misspelt({**options, "CORTEX_STARTED_BY": "a", "CORTEX_TEAM_NAME": "b", "OTHER_MAX_COTS": "c"}) == ""


def test_what_kubernetes_sets_for_a_service_of_our_name_is_left_alone():
    service = ("CORTEX_PORT", "CORTEX_SERVICE_HOST", "CORTEX_SERVICE_PORT", "CORTEX_PORT_8265_TCP_ADDR")
    assert misspelt(dict.fromkeys(service, "tcp://10.0.0.1:8265")) == ""
