"""What Ray's dashboard, ``ray list actors`` and its logs show of our actors."""

from __future__ import annotations

import pytest

from actors.runtime.ray_actor import methods, process_class


@pytest.mark.parametrize(
    ("role", "name", "shown"),
    [
        ("cortex", "cortex", "Cortex"), ("channel", "channel:labels", "Channel"), ("branch", "branch:0", "Branch"),
        ("worker", "worker:3", "Worker"),
    ],
)  # fmt: skip
def test_what_rays_dashboard_shows_of_an_actor(
    role: str, name: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its class is its role, and its repr, which stands before each line that it prints, says which one."""
    monkeypatch.setattr("actors.runtime.ray_runtime.seated", lambda *given: None)
    monkeypatch.setenv("PGPASSWORD", "")
    class_ = process_class(role)
    assert (class_.__name__, class_.__qualname__) == (shown, shown)
    assert repr(class_((), role, name, (), "local")) == name
    own = {method for method in vars(class_) if not method.startswith("_")}
    assert own == set(methods(role)), "what it can be asked, by these names"
    assert {vars(class_)[method].__qualname__ for method in own} == own
