"""Test models for programs: replies come from a script, or from the records of a job.

    from cortex.testing import ScriptedModel

    def test_triage():
        model = ScriptedModel({"crashes": "bug", "love": "praise"})
        assert cortex.run(triage(["It crashes."]), model=model).answer == ["bug"]
        assert len(model.calls) == 4

With pytest the fixture ``cortex_model`` is an empty model of this kind: ``cortex_model.on("crashes", "bug")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cortex.package_guard import hides

if TYPE_CHECKING:
    Asked: Any
    NoReply: Any
    RecordedModel: Any
    ScriptedModel: Any

__all__ = ["Asked", "NoReply", "RecordedModel", "ScriptedModel"]


def __getattr__(name: str) -> Any:
    """Import the models from ``actors.fakes`` on first use."""
    if name in __all__:
        try:
            from actors.fakes.scripted_models import Asked, NoReply, RecordedModel, ScriptedModel
        except ModuleNotFoundError as error:
            if error.name not in ("actors", "actors.fakes", "actors.fakes.scripted_models"):
                raise
            raise hides("actors", "a folder or file named actors") from None
        found = (Asked, NoReply, RecordedModel, ScriptedModel)
        return dict(zip(__all__, found, strict=True))[name]
    raise AttributeError(f"module 'cortex.testing' has no attribute {name!r}")
