"""Names of actors as Ray's dashboard, ``ray list actors`` and its logs show them, and the methods that can be called."""

from __future__ import annotations

import inspect

import pytest

from actors.runtime.ray_actor import HOST_METHODS, METHODS, ROLES, methods, process_class

LOCAL = {"cortex": {"begin"}}
"""Public coroutine methods that an actor's own process calls, by role: no other process can."""


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
    monkeypatch.setattr("actors.runtime.ray_runtime.make_host", lambda *given: None)
    monkeypatch.setenv("PGPASSWORD", "")
    class_ = process_class(role)
    assert (class_.__name__, class_.__qualname__) == (shown, shown)
    assert repr(class_((), role, name, (), "local")) == name
    own = {method for method in vars(class_) if not method.startswith("_")}
    assert own == set(methods(role)), "what it can be asked, by these names"
    assert {vars(class_)[method].__qualname__ for method in own} == own


@pytest.mark.parametrize("role", ROLES)
def test_remote_methods_are_the_public_coroutine_methods_of_the_actor(role: str) -> None:
    """A method that is added to an actor has to be listed, or named here as one for its own process."""
    listed, local = METHODS[role], LOCAL.get(role, set())
    public = {
        name for name, _ in inspect.getmembers(ROLES[role], inspect.iscoroutinefunction) if not name.startswith("_")
    }
    assert public == {*listed, *local}
    assert not {*listed} & local
    assert listed == tuple(sorted({*listed})), "each once, in order"
    assert not {*listed} & {*HOST_METHODS}, "the host would answer in its place"
    assert ROLES.keys() == METHODS.keys()


@pytest.mark.parametrize("role", ROLES)
def test_a_method_that_is_not_listed_cannot_be_called_by_ray(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unlisted(self: object) -> None:
        """Do nothing."""

    monkeypatch.setattr(ROLES[role], "unlisted", unlisted, raising=False)
    assert not hasattr(process_class(role), "unlisted")
