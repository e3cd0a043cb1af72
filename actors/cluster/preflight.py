"""Checks before a connection to Ray: does the Ray accept this process, and does it have a node on this machine.

Ray's own attempt takes a minute, prints a line a second, and names neither the token nor the node that was missing. If
``RAY_AUTH_MODE=token`` is set without a token, Ray even ends the process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from actors.cluster.bootstrap import first_line
from actors.ports.runtime import ClusterError

ASK_S = 3.0
NODE_S = 5.0
"""Seconds to wait for a node of the Ray on this machine, which may be starting at the same time."""
_LOOK_S = 0.25
_NOBODY = "01" * 28
"""Cluster id that no Ray has. A Ray that accepts this process answers that the id is wrong; any other refuses first."""
_REFUSED = "InvalidAuthToken"
_WHERE = "RAY_AUTH_TOKEN, a file named by RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token"


def refusal(address: str, environ: Mapping[str, str], has_token: bool, text: str) -> str:
    """Return the reason why Ray refuses this process, in one line; empty if it does not. ``text``: answer to an empty
    request.
    """
    announced = environ.get("RAY_AUTH_MODE", "").lower() == "token"
    if announced and not has_token:
        return f"RAY_AUTH_MODE=token, but there is no token: give {_WHERE}"
    if _REFUSED not in text:
        return ""
    if announced:
        return f"the Ray at {address} refuses the token: {_WHERE} holds the token of another Ray"
    return f"the Ray at {address} asks for a token: set RAY_AUTH_MODE=token, and give the token by {_WHERE}"


def see_usable(address: str, sockets: Collection[str]) -> None:
    """Check that some node of Ray on this machine belongs to this user; else Ray would end the process.

    ``sockets``: paths of the sockets on which the nodes serve their drivers. Raises ``ClusterError``.
    """
    if address.startswith("ray://") or not sockets or any(os.access(path, os.R_OK | os.W_OK) for path in sockets):
        return
    raise ClusterError(
        f"the node of the Ray at {address} on this machine belongs to another user: work as that user, or "
        "connect by ray://host:10001 or http://host:8265"
    )


def see_admitted(
    address: str, environ: Mapping[str, str], has_token: bool, gcs_client: Callable[..., Any],
    nodes_here: Callable[[], Any],
) -> None:  # fmt: skip
    """Check that the Ray at an address accepts this process and has a node on this machine. Raises ``ClusterError`` if
    not.

    ``gcs_client`` makes Ray's client of its head; ``nodes_here`` finds the nodes among this machine's processes.
    """
    if address.startswith("ray://"):
        return  # the driver is a server on the cluster, and reports by itself what is missing
    why = refusal(address, environ, has_token, "")
    if not why:
        try:
            gcs_client(address=address, cluster_id=_NOBODY).internal_kv_keys(b"", None, timeout=ASK_S)
        except Exception as error:  # any error of Ray
            why = refusal(address, environ, has_token, first_line(error))
    if why:
        raise ClusterError(why)
    until_s = time.monotonic() + NODE_S
    while not nodes_here():
        if time.monotonic() >= until_s:
            raise ClusterError(
                f"no node of the Ray at {address} runs on this machine, and a driver needs one: start it with "
                f"`ray start --address={address}`, or work on a machine that has one"
            )
        time.sleep(_LOOK_S)
