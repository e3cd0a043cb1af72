"""Servers that are found under one name: which addresses of an answer join, and which leave.

A headless Service of Kubernetes has an address record for each ready pod, and none, with the error NXDOMAIN, while no
pod is ready (https://github.com/kubernetes/dns/blob/master/docs/specification.md, 2.4.1). Clients of such names take
each address as a server of its own: gRPC's `dns` resolver (https://github.com/grpc/grpc/blob/master/doc/naming.md), and
Envoy's strict DNS, which drops a host as soon as an answer lacks it
(https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/service_discovery).

Here an address joins at once. It leaves with the second answer in a row without it: some name services tell a part of
their addresses at a time, and a server that is gone costs no call an attempt (`policies.failures.peers`). It does not
stay for longer, since another pod may have its address soon. An answer without any address changes nothing: without
servers a job could only wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

EVERY_S: Final = 10.0
"""Seconds between two lookups. The operating system does not tell how long an answer holds. By default Envoy looks
every 5 s (``dns_refresh_rate``), gRPC at most every 30 s (``GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS``); answers of
CoreDNS hold for 5 s (https://coredns.io/plugins/kubernetes/), and for 30 s in clusters that kubeadm has made
(https://kubernetes.io/docs/tasks/administer-cluster/dns-custom-nameservers/)."""


class FoundServers(msgspec.Struct, frozen=True):
    """Servers found under one name."""

    addresses: tuple[str, ...] = ()
    """Addresses of the servers in use, in the order in which they joined."""
    absent: frozenset[str] = frozenset()
    """Those among them that the latest answer lacked."""


def after_answer(before: FoundServers, answer: Sequence[str]) -> FoundServers:
    """Return the servers after an answer with these addresses. An answer without any changes nothing."""
    if not answer:
        return before
    told = frozenset(answer)
    stay = [each for each in before.addresses if each in told or each not in before.absent]
    joins = dict.fromkeys(each for each in answer if each not in stay)
    return FoundServers((*stay, *joins), frozenset(stay) - told)


def change_text(before: FoundServers, after: FoundServers) -> str:
    """Return which servers join and leave, in a few words; empty: none does."""
    joins = [each for each in after.addresses if each not in before.addresses]
    leaves = [each for each in before.addresses if each not in after.addresses]
    parts = [f"{_listed(joins)} {_verb(joins, 'join')}" if joins else ""]
    parts.append(f"{_listed(leaves)} {_verb(leaves, 'leave')}" if leaves else "")
    return ", ".join(filter(None, parts))


LISTED_MAX: Final = 5
"""Addresses in one line; the others are counted."""


def _listed(addresses: Sequence[str]) -> str:
    more = len(addresses) - LISTED_MAX
    return " ".join(addresses[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def _verb(addresses: Sequence[str], verb: str) -> str:
    return verb if len(addresses) > 1 else f"{verb}s"
