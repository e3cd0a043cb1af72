"""`cortex` with an instant ``--model sim``: ``python -m benchmarks.harness.instant_model batch INPUT -o OUTPUT``.

The simulated provider reads each prompt like a reader, which takes longer than all of Cortex's own work.
``models.AtOnce`` replaces it in this process and in every actor of a private Ray started by this process. If the
provider's settings name models, they select the provider itself or ``models.Oracle``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from actors.runtime import ray_actor
from actors.simulator.frontends import in_memory
from benchmarks.harness.models import AtOnce, Oracle

_process_class = ray_actor.process_class


_simulated = in_memory.SimulatedModel
ORACLE = ("sim", "oracle")
"""Value of ``models`` in the simulated provider's settings that selects ``models.Oracle``."""


def _at_once(settings: Any = None) -> Any:
    named = settings.models if settings is not None else ()
    if named:
        return Oracle() if named == ORACLE else _simulated(settings)
    return AtOnce()


def hosting(module: str, role: str) -> type:
    """Return the class that Ray runs for a role; its process also calls ``install`` of the module."""
    given: Any = _process_class(role)

    class Hosted(given):  # type: ignore[misc]
        def __init__(self, paths: tuple[str, ...], *args: Any) -> None:
            import importlib
            import sys

            sys.path[:] = dict.fromkeys([*paths, *sys.path])
            importlib.import_module(module).install()
            super().__init__(paths, *args)

    Hosted.__name__ = Hosted.__qualname__ = given.__name__
    return Hosted


def install() -> None:
    """Replace the model in this process. Call before connecting to Ray or making an actor."""
    in_memory.SimulatedModel = _at_once  # type: ignore[assignment, misc]
    ray_actor.process_class = partial(hosting, "benchmarks.harness.instant_model")


if __name__ == "__main__":
    from actors.cli import main
    from benchmarks.harness.instant_model import install as install_once

    install_once()
    main()
