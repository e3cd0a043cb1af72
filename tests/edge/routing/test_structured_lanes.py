"""Lanes with structured outputs: each route of a lane must have them, fallbacks included."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors.fakes.scripted_models import ScriptedModel
from actors.routing.routes import ModelSpec, destination, structured_lanes
from cortex.values.limits import Limits

ENVIRON = {"ANTHROPIC_API_KEY": "sk-made-up-0123456789"}
NEW, OLD = ModelSpec(model="claude-haiku-4-5"), ModelSpec(model="claude-3-5-haiku-20241022")


@pytest.mark.parametrize(
    ("spec", "fallbacks", "roles", "lanes"),
    [
        (NEW, (), {}, (0,)),
        (OLD, (), {}, ()),
        (NEW, (OLD,), {}, ()),
        (NEW, (ModelSpec(model="claude-sonnet-4-5"),), {}, (0,)),
        (OLD, (), {"judge": NEW}, (1,)),
        (NEW, (OLD,), {"judge": ModelSpec(model="claude-sonnet-4-5"), "other": OLD}, (1,)),
        (msgspec.structs.replace(NEW, base_url="https://llm.example.com"), (), {}, ()),
    ],
)
def test_a_lane_has_structured_outputs_if_all_its_routes_have(
    spec: ModelSpec, fallbacks: Any, roles: Any, lanes: tuple[int, ...]
) -> None:
    given = msgspec.structs.replace(spec, fallbacks=fallbacks, roles=roles)
    assert structured_lanes(destination(given, Limits(), ENVIRON, start=False)) == lanes


def test_a_model_object_has_none() -> None:
    found = destination(NEW, Limits(), ENVIRON, ScriptedModel(endpoint="https://api.anthropic.com"))
    assert structured_lanes(found) == ()
