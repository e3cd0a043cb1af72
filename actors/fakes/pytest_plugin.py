"""Pytest plugin of an installed cortex: the fixture ``cortex_model``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from actors.fakes.scripted_models import ScriptedModel


@pytest.fixture
def cortex_model() -> ScriptedModel:
    """Return a model with an empty script: ``cortex_model.on("crashes", "bug")``; then ``cortex.run(…,
    model=cortex_model)``.

    ``calls`` lists the calls that the model got. A prompt without a reply fails the test, with one line.
    """
    from actors.fakes.scripted_models import ScriptedModel

    return ScriptedModel()
