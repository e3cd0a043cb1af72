"""For authors who test their programs: models that answer from a script, or from what a job has recorded.

    from cortex.testing import ScriptedModel

    def test_triage():
        model = ScriptedModel({"crashes": "bug", "love": "praise"})
        assert cortex.run(triage(["It crashes."]), model=model).answer == ["bug"]
        assert len(model.calls) == 4

With pytest the fixture ``cortex_model`` is such a model, empty: ``cortex_model.on("crashes", "bug")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.scripted import Asked as Asked
    from actors.scripted import NoReply as NoReply
    from actors.scripted import RecordedModel as RecordedModel
    from actors.scripted import ScriptedModel as ScriptedModel

__all__ = ["Asked", "NoReply", "RecordedModel", "ScriptedModel"]


def __getattr__(name: str) -> Any:
    """The other lazy door to the edge."""
    if name in __all__:
        from actors import scripted

        return getattr(scripted, name)
    raise AttributeError(f"module 'cortex.testing' has no attribute {name!r}")
