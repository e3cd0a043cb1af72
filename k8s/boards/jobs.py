"""Dashboard "Cortex / Jobs": progress, cost, latency and failures of jobs."""

from __future__ import annotations

from typing import Any

from k8s.boards.panels import BLUE, GREEN, RED, YELLOW, board, chosen, lines, number, rows, warmth
from k8s.boards.queries import (
    JOB,
    OF_CLUSTER,
    OF_JOBS,
    THROTTLED,
    in_all,
    level,
    matching,
    present,
    quantile,
    rate,
    slope,
)

UID = "cortex-jobs"

EXPECTED = level("cortex_rows_expected", OF_JOBS)
DONE = f"({in_all('cortex_rows_total', OF_JOBS, over='cortex_outcome')} or 0 * {EXPECTED})"
KNOWN = level("cortex_cost_usd_total", OF_JOBS)
COST = f"({KNOWN} + {level('cortex_cost_assumed_usd', OF_JOBS)})"
CAP = level("cortex_cost_cap_usd", OF_JOBS)
LEFT = f"({EXPECTED} - {DONE})"
ROW_RATE = slope("cortex_rows_total", OF_JOBS, over=("cortex_outcome",))

FAILED = 'cortex_kind!="answered"'


def _progress() -> list[Any]:
    failed = level("cortex_rows_total", OF_JOBS, 'cortex_outcome="failed"')
    return [
        number("Done", "Rows with a result, as a share of the known rows. Programs without rows are not included.",
               f"sum({DONE}) / (sum({EXPECTED}) > 0)", "percentunit", ((None, BLUE), (1, GREEN)), decimals=1),
        number("Rows left", "Rows without a result yet.", f"sum{LEFT}"),
        number("Time left, at this rate", "Rows left divided by the rate of the last 15 minutes, for the job that takes longest.",
               f"max({LEFT} / ({ROW_RATE} > 0))", "s"),
        number("Time to the deadline", "Time left of the job with the nearest deadline. Negative: the deadline has passed.",
               f"min({level('cortex_job_deadline_seconds', OF_JOBS)}) - time()", "s",
               ((None, RED), (0, YELLOW), (1800, GREEN))),
        number("Since the last progress", "Time since a call last ended, in the job where it is longest. "
               "After 15 minutes an alert fires if there is work.",
               f"time() - min({level('cortex_job_progressed_seconds', OF_JOBS)})", "s",
               ((None, GREEN), (300, YELLOW), (900, RED))),
        number("Rows failed", "Rows whose result is an error.", f"sum({failed}) or vector(0)", "short",
               ((None, GREEN), (1, YELLOW))),
        number("Cost", "Known cost, and assumed cost of attempts without reported usage. USD.", f"sum({COST})", "currencyUSD",
               decimals=2),
        number("Of the cap", "Cost, and reservations for calls in flight, as a share of `--max-cost`. The cap is never exceeded; "
               "at the cap the job ends partial and can be resumed.",
               f"max(({COST} + {level('cortex_cost_reserved_usd', OF_JOBS)}) / {CAP})", "percentunit",
               ((None, GREEN), (0.8, YELLOW), (0.95, RED)), none="no cap", decimals=1),
        rows("Jobs", "Jobs that are running, or were running at the last scrape.",
             {
                 "Done": (f"{DONE} / ({EXPECTED} > 0)", "percentunit"),
                 "Rows left": (LEFT, "short"),
                 "Rows a second": (ROW_RATE, "short"),
                 "In flight": (present("cortex_calls_in_flight", OF_JOBS), "short"),
                 "Cost": (COST, "currencyUSD"),
                 "Time to the deadline": (f"{level('cortex_job_deadline_seconds', OF_JOBS)} - time()", "s"),
                 "Since the last progress": (f"time() - {level('cortex_job_progressed_seconds', OF_JOBS)}", "s"),
             },
             {"cortex_job_id": "Job", "namespace": "Namespace"}),
    ]  # fmt: skip


def _pace() -> list[Any]:
    return [
        lines("Rows a second", "Results written, by outcome. `refused` are input rows that could not be sent.",
              {"{{cortex_outcome}}": rate("cortex_rows_total", OF_JOBS, labels=("cortex_outcome",))}, stacked=True),
        lines("Calls a second", "Calls that ended. `reused`: answered from memory, not paid again.",
              {"{{cortex_outcome}}": rate("cortex_calls_total", OF_JOBS, labels=("cortex_outcome",))}, stacked=True),
        lines("Queue, in flight, permits", "Calls that wait for a permit, attempts in flight, and the permits that the job "
              "holds. A queue with all permits in flight: the limit is the bottleneck (see Cortex / Cluster). A queue with "
              "spare permits: a breaker, a pause, or the cap on money.",
              {"queue": f"sum({present('cortex_queue', OF_JOBS)})",
               "in flight": f"sum({present('cortex_calls_in_flight', OF_JOBS)})",
               "permits": f"sum({present('cortex_permits', OF_JOBS)})"}),
    ]  # fmt: skip


def _failures() -> list[Any]:
    throttled = rate("cortex_attempts_total", OF_JOBS, THROTTLED)
    return [
        lines("Failed attempts a second, by kind", "Failures that cause retries. The kinds are those of `cortex report JOB`.",
              {"{{cortex_kind}}": rate("cortex_attempts_total", OF_JOBS, FAILED, labels=("cortex_kind",))}, stacked=True,
              span=12),
        lines("Throttled share", "Share of all attempts. Some throttling is normal while the limit adapts; above a fifth for long, "
              "other users leave less of the limit than this job may ask for.",
              {"throttled": f"({throttled} or vector(0)) / {rate('cortex_attempts_total', OF_JOBS)}"}, "percentunit",
              limit=0.2, span=12),
        lines("Rows a second, by ending", "Rows by the ending of their last reply. Many that are `cut`: --max-output-tokens is too "
              "small for the answers, or for the thinking before them.",
              {"{{cortex_ending}}": rate("cortex_rows_endings_total", OF_JOBS, labels=("cortex_ending",))}, stacked=True,
              span=12),
        lines("Again, a minute", "Retries of failed attempts, hedges of slow ones (both are paid), and votes.",
              {name: f"60 * {rate(f'cortex_{name}_total', OF_JOBS)}" for name in ("retries", "hedges", "votes")}, span=12),
    ]  # fmt: skip


def _money() -> list[Any]:
    return [
        lines("Cost against the cap", "Known cost; with the assumed cost of attempts without reported usage; with "
              "reservations for calls in flight; and the cap. USD.",
              {"known": f"sum({KNOWN})",
               "with assumed": f"sum({COST})",
               "with reserved": f"sum({COST} + {level('cortex_cost_reserved_usd', OF_JOBS)})",
               "cap": f"sum({CAP})"}, "currencyUSD"),
        lines("Cost an hour", "Known cost at the current rate, by job. USD.",
              {"{{cortex_job_id}}": f"3600 * {rate('cortex_cost_usd_total', OF_JOBS, labels=JOB)}"}, "currencyUSD"),
        lines("Tokens a second", "Tokens as the provider counts them. Cached input is billed at separate prices.",
              {"{{cortex_token_type}}": rate("cortex_tokens_total", OF_JOBS, labels=("cortex_token_type",))}, stacked=True),
        lines("Tokens against the cap", "Tokens used, assumed, and reserved for calls in flight; and `--max-job-tokens` if it "
              "is set.",
              {"{{cortex_job_id}}": level("cortex_tokens_committed", OF_JOBS),
               "cap of {{cortex_job_id}}": level("cortex_tokens_cap", OF_JOBS)}, span=12),
        lines("Tokens a call", "Median and 95th percentile, by type.",
              {"{{gen_ai_token_type}} p50": quantile(0.5, "gen_ai_client_token_usage", OF_JOBS, labels=("gen_ai_token_type",)),
               "{{gen_ai_token_type}} p95": quantile(0.95, "gen_ai_client_token_usage", OF_JOBS,
                                                     labels=("gen_ai_token_type",))}, span=12),
    ]  # fmt: skip


def _latency() -> list[Any]:
    name = "gen_ai_client_operation_duration_seconds"
    return [
        lines("How long an answer takes", "Time of one attempt from its sending to its reply, without waits for a permit "
              "and retries. The dots are single calls with their trace.",
              {f"p{round(q * 100)}": quantile(q, name, OF_JOBS, 'error_type=""') for q in (0.5, 0.95, 0.99)}, "s",
              exemplar=True),
        lines("p95 by model", "95th percentile of the time of an attempt, a curve for each model.",
              {"{{gen_ai_request_model}}": quantile(0.95, name, OF_JOBS, 'error_type=""', labels=("gen_ai_request_model",))},
              "s"),
        warmth("Answers by how long they took", "Answers a second in each range. Two bands mean two kinds of calls, or a limit "
               "at which some calls wait.", rate(f"{name}_bucket", OF_JOBS, 'error_type=""', labels=("le",))),
    ]  # fmt: skip


def _journal() -> list[Any]:
    return [
        lines("Journal lag", "Longest wait of an event to be on disk, in the last minute. No event is acted on before it "
              "is on disk.", {"{{cortex_job_id}}": level("cortex_journal_lag_seconds", OF_JOBS)}, "s", limit=5),
        lines("Turns: p95 by phase", "Time of a channel's turn: in the step, in the commit to disk, in absorbing "
              "and in selecting.",
              {"{{cortex_phase}}": quantile(0.95, "cortex_turn_duration_seconds", OF_JOBS, labels=("cortex_phase",))}, "s"),
        lines("Turns a second", "Each turn is a commit. Few turns with many events each are cheapest.",
              {"{{cortex_job_id}}": rate("cortex_turn_duration_seconds_count", OF_JOBS, 'cortex_phase="commit"', labels=JOB)}),
        lines("Journal size", "Bytes on disk, by job.",
              {"{{cortex_job_id}}": present("cortex_journal_size_bytes", OF_JOBS)}, "bytes", span=12),
        lines("Free disk", "Free space on the disk of the state folder. Without free space the job stops, resumable.",
              {"{{cortex_job_id}}": level("cortex_disk_free_bytes", OF_JOBS)}, "bytes", span=12),
    ]  # fmt: skip


def jobs() -> Any:
    """Return the dashboard."""
    known = matching("cortex_rows_expected", OF_CLUSTER)
    return board(
        "Cortex / Jobs",
        UID,
        "Progress, rate, cost, failures, latency, queue and journal of Cortex jobs. Works with --metrics-listen, OTLP and "
        "Ray's metrics port alike. What each curve means for you is in docs/observing.md; what to do, in docs/runbook.md.",
        [
            chosen("namespace", "Namespace", f"label_values({matching('cortex_rows_expected')}, namespace)",
                   "Of Kubernetes. All: also what was not scraped there."),
            chosen("job", "Job", f"label_values({known}, cortex_job_id)", "The job's name, as `cortex jobs` lists it."),
        ],
        {
            "Progress": _progress(),
            "Pace": _pace(),
            "Failures": _failures(),
            "Money and tokens": _money(),
            "Latency": _latency(),
            "Journal and disk": _journal(),
        },
    )
