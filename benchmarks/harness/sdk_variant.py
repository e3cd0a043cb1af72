"""`cortex` with the SDK's own client for each request: ``python -m benchmarks.harness.sdk_variant batch INPUT``.

Shows the cost of `client.post` with the SDK's authentication, transport and response wrapping, in this process and in
every actor of the private Ray started by it.
"""

from __future__ import annotations

from functools import partial

from actors.providers.messages.client import AnthropicModel
from actors.runtime import ray_actor
from benchmarks.harness.instant_model import hosting


def install() -> None:
    """Switch this process to the SDK's client. Call before connecting to Ray or making an actor."""
    defaults = AnthropicModel.__init__.__kwdefaults__
    assert defaults is not None
    defaults["through_sdk"] = True
    ray_actor.process_class = partial(hosting, "benchmarks.harness.sdk_variant")


if __name__ == "__main__":
    from actors.cli import main
    from benchmarks.harness.sdk_variant import install as install_once

    install_once()
    main()
