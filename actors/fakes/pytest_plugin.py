"""What pytest finds where this is installed: the fixture ``cortex_model``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from actors.fakes.scripted_models import ScriptedModel


@pytest.fixture
def cortex_model() -> ScriptedModel:
    """A model without a script yet: ``cortex_model.on("crashes", "bug")``; then ``cortex.run(…, model=cortex_model)``.

    Its ``calls`` are what it was asked. A prompt that it has no reply to fails the test, in one line.
    """
    from actors.fakes.scripted_models import ScriptedModel

    return ScriptedModel()
