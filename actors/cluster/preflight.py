"""Whether a Ray lets this process in, and has a node on this machine.

Asked before Ray itself is: that tries for a minute, writes a line a second, and says at the end neither which token nor
which node it missed. Where a token is announced and there is none, it even ends the process.
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
"""How long a node of Ray's on this machine is waited for: it may be starting beside us."""
_LOOK_S = 0.25
_NOBODY = "01" * 28
"""The id of no Ray: one that lets us in says that we have the wrong one, and one that does not says so first."""
_REFUSED = "InvalidAuthToken"
_WHERE = "RAY_AUTH_TOKEN, a file named by RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token"


def refusal(address: str, environ: Mapping[str, str], has_token: bool, text: str) -> str:
    """Why we are not let in, in one line; empty where we are. ``text``: the answer to an empty question."""
    announced = environ.get("RAY_AUTH_MODE", "").lower() == "token"
    if announced and not has_token:
        return f"RAY_AUTH_MODE=token, but there is no token: give {_WHERE}"
    if _REFUSED not in text:
        return ""
    if announced:
        return f"the Ray at {address} refuses our token: what stands in {_WHERE} is another Ray's"
    return f"the Ray at {address} asks for a token: set RAY_AUTH_MODE=token, and give the token by {_WHERE}"


def see_usable(address: str, sockets: Collection[str]) -> None:
    """Raises ``ClusterError`` where all nodes of Ray on this machine are another user's: there Ray ends the process.

    ``sockets``: paths of those through which the nodes' drivers speak to them.
    """
    if address.startswith("ray://") or not sockets or any(os.access(path, os.R_OK | os.W_OK) for path in sockets):
        return
    raise ClusterError(
        f"the node of the Ray at {address} on this machine is another user's: work as that user, or go by "
        "ray://host:10001 or http://host:8265"
    )


def see_admitted(
    address: str, environ: Mapping[str, str], has_token: bool, gcs_client: Callable[..., Any],
    nodes_here: Callable[[], Any],
) -> None:  # fmt: skip
    """Raises ``ClusterError`` where the Ray at an address does not let us in, or has no node on this machine.

    ``gcs_client`` makes Ray's client of its head, ``nodes_here`` finds the nodes among this machine's processes.
    """
    if address.startswith("ray://"):
        return  # a server over there is the driver, and says itself what it misses
    why = refusal(address, environ, has_token, "")
    if not why:
        try:
            gcs_client(address=address, cluster_id=_NOBODY).internal_kv_keys(b"", None, timeout=ASK_S)
        except Exception as error:  # whatever Ray says
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
