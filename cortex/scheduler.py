"""The cortex's own pure ``step``: who may have how many calls in flight, what is well, and what is started or ended.

    step : (state, event) -> commands

(The events, the commands and the state are here; the rules follow.)
"""

from __future__ import annotations

from cortex.cluster import LEASE_S, Cluster, Settings
from cortex.orders import (
    Admit,
    Asked,
    Begun,
    Capped,
    Command,
    Condemn,
    Died,
    Drain,
    Event,
    Heard,
    Joined,
    Kill,
    Left,
    Moved,
    Nodes,
    Passed,
    Ping,
    Reported,
    Retire,
    Staffed,
    Start,
    Started,
    There,
    Unheard,
)
from cortex.signals import Grant

__all__ = [
    "LEASE_S",
    "Admit",
    "Asked",
    "Begun",
    "Capped",
    "Cluster",
    "Command",
    "Condemn",
    "Died",
    "Drain",
    "Event",
    "Grant",
    "Heard",
    "Joined",
    "Kill",
    "Left",
    "Moved",
    "Nodes",
    "Passed",
    "Ping",
    "Reported",
    "Retire",
    "Settings",
    "Staffed",
    "Start",
    "Started",
    "There",
    "Unheard",
]
