"""Dashboard "Cortex / Cluster": limits, breakers, members and nodes, over all jobs."""

from __future__ import annotations

from typing import Any

from k8s.boards.panels import GREEN, RED, YELLOW, board, chosen, lines, number, states
from k8s.boards.queries import OF_CLUSTER, THROTTLED, increase, level, matching, quantile, rate

UID = "cortex-cluster"

# Each process with its own cortex (`--cluster inline`) is a cluster, identified by the address at which it was scraped.
# On Ray there is one cortex, on one node.
PLACE = ("namespace", "instance")
SUBJECT = (*PLACE, "cortex_subject_kind", "cortex_subject")
OF_POOLS = f'cortex_pool=~"$pool", {OF_CLUSTER}'

UP, DRAINED = 'cortex_state="up"', 'cortex_state="drained"'

CLEAR = ((None, GREEN), (1, RED))
NOTED = ((None, GREEN), (1, YELLOW))


def _standing(name: str, *matchers: str, labels: tuple[str, ...] = PLACE, by: tuple[str, ...] = ()) -> str:
    """Return the query of a cluster's gauge, over all clusters that are shown."""
    inner = level(name, OF_CLUSTER, *matchers, labels=(*labels, *by))
    return f"sum by ({', '.join(by)}) ({inner})" if by else f"sum({inner})"


def _now() -> list[Any]:
    state = level("cortex_breaker_state", OF_CLUSTER, labels=SUBJECT)
    lag = f"max({matching('cortex_journal_lag_seconds', OF_CLUSTER)})"
    return [
        number("Jobs", "Jobs that are admitted now.", _standing("cortex_jobs")),
        number("Breakers open", "Routes, tools and nodes whose breaker is open.", f"sum({state} == bool 2)", "short", CLEAR),
        number("Nodes up", "Nodes that branches and workers run on.",
               _standing("cortex_nodes", UP), "short", ((None, RED), (1, GREEN))),
        number("Nodes drained", "Nodes that get no more work: their actors kept dying, or an operator drained them.",
               f"{_standing('cortex_nodes', DRAINED)} or vector(0)", "short", NOTED),
        number("Channels orphaned", "Jobs whose channel is dead, or has not reported for the time of its lease. Should be none.",
               f"{_standing('cortex_channels_orphaned')} or vector(0)", "short", CLEAR),
        number("Restarts, last hour", "Members that were restarted after they died or hung.",
               f"{increase('cortex_restarts_total', OF_CLUSTER, window='1h')} or vector(0)", "short",
               ((None, GREEN), (1, YELLOW), (10, RED)), decimals=0),
        number("Kills, last hour", "Members that did not stop when asked.",
               f"{increase('cortex_kills_total', OF_CLUSTER, window='1h')} or vector(0)", "short",
               ((None, GREEN), (1, YELLOW), (5, RED)), decimals=0),
        number("Journal lag, worst", "Longest wait of an event to be on disk, over all jobs, in the last minute.", lag, "s",
               ((None, GREEN), (1, YELLOW), (5, RED))),
    ]  # fmt: skip


def _pools() -> list[Any]:
    def pool(part: str) -> str:
        return f"sum by (cortex_pool) ({level(f'cortex_pool_{part}', OF_POOLS, labels=(*PLACE, 'cortex_pool'))})"

    return [
        lines("Limit and in flight", "Learnt limit of concurrent calls (it grows while answers come and is "
              "cut when the provider throttles), and calls in flight. In flight far below the limit: too little work, "
              "or too few branches.",
              {"{{cortex_pool}}: limit": pool("limit"), "{{cortex_pool}}: in flight": pool("in_flight")}, span=12),
        lines("Granted and wanted", "Concurrent calls that jobs want, and calls that they were granted. Wanted far above granted: "
              "the limit is the bottleneck.",
              {"{{cortex_pool}}: granted": pool("granted"), "{{cortex_pool}}: wanted": pool("wanted")}, span=12),
        lines("Use of the limit", "Calls in flight as a share of the limit.", {"{{cortex_pool}}": f"{pool('in_flight')} / {pool('limit')}"},
              "percentunit", span=12),
        lines("Throttled share", "Share of the attempts of all jobs. Some throttling is normal while the limit adapts; above a fifth for long, "
              "other users share the account, or an operator set the limit too high.",
              {"throttled": f"({rate('cortex_attempts_total', OF_CLUSTER, THROTTLED)} or vector(0)) / "
                            f"{rate('cortex_attempts_total', OF_CLUSTER)}"}, "percentunit", limit=0.2, span=12),
    ]  # fmt: skip


def _breakers() -> list[Any]:
    names = {0: ("closed", GREEN), 1: ("half open", YELLOW), 2: ("open", RED)}
    subject = "{{cortex_subject_kind}} {{cortex_subject}}"
    state = level("cortex_breaker_state", OF_CLUSTER, labels=SUBJECT)
    return [
        states("Breakers", "Open: no call is sent, work waits or takes its fallback. Half open: a few calls probe the route.",
               state, subject, names, span=24),
        lines("Opened, an hour", "Number of openings of each breaker.",
              {subject: f"3600 * {rate('cortex_breaker_opened_total', OF_CLUSTER, labels=SUBJECT)}"}, span=12),
        lines("Probes a minute", "Calls that probe whether an open route works again.",
              {subject: f"60 * {rate('cortex_probes_total', OF_CLUSTER, labels=SUBJECT)}"}, span=12),
    ]  # fmt: skip


def _members() -> list[Any]:
    return [
        lines("Members", "Branches make calls, workers run tools, channels own a job each. `wanted` is the number that there "
              "should be.",
              {"{{cortex_role}} {{cortex_state}}": _standing("cortex_members", by=("cortex_role", "cortex_state"))}),
        lines("Nodes", "Nodes by state, as known to the cortex.", {"{{cortex_state}}": _standing("cortex_nodes", by=("cortex_state",))}),
        lines("Restarts and kills, an hour", "A member that keeps dying takes its node out; a channel that keeps dying fails its "
              "job.",
              {"{{cortex_role}} restarted": f"3600 * {rate('cortex_restarts_total', OF_CLUSTER, labels=('cortex_role',))}",
               "{{cortex_role}} killed": f"3600 * {rate('cortex_kills_total', OF_CLUSTER, labels=('cortex_role',))}"}),
    ]  # fmt: skip


def _work() -> list[Any]:
    turn = "cortex_turn_duration_seconds"
    return [
        lines("Attempts a second, by kind", "Attempts of all jobs.",
              {"{{cortex_kind}}": rate("cortex_attempts_total", OF_CLUSTER, labels=("cortex_kind",))}, stacked=True),
        lines("Turns: p50 and p95", "Time of a channel's turn, commit included, over all jobs.",
              {"{{cortex_phase}} p50": quantile(0.5, turn, OF_CLUSTER, labels=("cortex_phase",)),
               "{{cortex_phase}} p95": quantile(0.95, turn, OF_CLUSTER, labels=("cortex_phase",))}, "s"),
        lines("Journal lag by job", "Longest wait of an event to be on disk, in the last minute.",
              {"{{cortex_job_id}}": level("cortex_journal_lag_seconds", OF_CLUSTER, labels=("cortex_job_id",))}, "s", limit=5),
    ]  # fmt: skip


def cluster() -> Any:
    """Return the dashboard."""
    return board(
        "Cortex / Cluster",
        UID,
        "Limits, breakers, members and nodes of Cortex. Works with --metrics-listen, OTLP and Ray's metrics port alike. What "
        "each curve means for you is in docs/observing.md; what to do, in docs/runbook.md.",
        [
            chosen("namespace", "Namespace", f"label_values({matching('cortex_jobs')}, namespace)",
                   "Of Kubernetes. All: also what was not scraped there."),
            chosen("pool", "Pool", f"label_values({matching('cortex_pool_limit', OF_CLUSTER)}, cortex_pool)",
                   "Unit of the provider's limits: endpoint, credential and class of models."),
        ],
        {
            "Now": _now(),
            "Pools": _pools(),
            "Breakers": _breakers(),
            "Members and nodes": _members(),
            "Work": _work(),
        },
    )
