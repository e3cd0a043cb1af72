"""What each shared option is called, takes and does: its flag, its environment variable and its line of help."""

from __future__ import annotations

from typing import Any

import typer


def _option(
    flag: str, told: str, metavar: str | None = None, least: int | None = None, short: str = ""
) -> Any:
    variable = (
        "CORTEX_DEBUG"
        if flag == "--verbose"
        else "CORTEX_" + flag.removeprefix("--").replace("-", "_").upper()
    )
    flags = (flag, short) if short else (flag,)
    return typer.Option(*flags, help=told, metavar=metavar, envvar=variable, show_default=False, min=least)


DECLARED: dict[str, tuple[Any, Any]] = {
    "model": (str, _option("--model", "local, sim, or a provider's model; replaces the rows' own", "NAME")),
    "provider": (
        str,
        _option(
            "--provider", "who serves the model: anthropic (default), bedrock, vertex or foundry, with where it is "
            "asked unless the environment says it: bedrock,region=eu-west-1; vertex,region=global,project=P; "
            "foundry,resource=R", "NAME",
        ),
    ),
    "base_url": (
        str, _option("--base-url", "where the provider is: any server that speaks its Messages API", "URL")
    ),
    "api_key_file": (
        str,
        _option(
            "--api-key-file", "a file that holds the key; where calls are made it is read again when the key is "
            "refused, so that a key is rotated without a stop", "FILE",
        ),
    ),
    "via": (
        str,
        _option("--via", "messages (default), or batches: half the price, an answer may take a day", "ROAD"),
    ),
    "job": (str, _option("--job", "the job's name; else it derives from program, input and output", "NAME")),
    "state": (str, _option("--state", "folder of the journals (default .cortex), or postgresql://HOST/DB", "PLACE")),
    "limits": (
        str,
        _option(
            "--limits", "postgresql://HOST/DB where several clusters that use one account share its limits and the "
            "budgets of labels", "PLACE",
        ),
    ),
    "max_cost": (str, _option("--max-cost", "cap on what the job may cost, in USD; never passed", "USD")),
    "max_job_tokens": (str, _option("--max-job-tokens", "cap on tokens, input and output together", "N")),
    "max_output_tokens": (int, _option("--max-output-tokens", "most tokens of one reply", "N", 1)),
    "prompt_tokens_max": (int, _option("--prompt-tokens-max", "M: most tokens of one prompt", "N", 1)),
    "concurrency": (str, _option("--concurrency", "most calls in flight at once (default 100)", "N")),
    "rpm": (str, _option("--rpm", "most requests a minute of this job; below the provider's own limit", "N")),
    "itpm": (str, _option("--itpm", "most input tokens a minute", "N")),
    "otpm": (str, _option("--otpm", "most output tokens a minute", "N")),
    "headroom": (str, _option("--headroom", "share of the provider's limits left to other traffic", "SHARE")),
    "priority": (str, _option("--priority", "weight among jobs that share a limit (default 1)", "WEIGHT")),
    "fallback": (
        list[str],
        _option(
            "--fallback", "where calls go while the breaker of the model is open: MODEL, MODEL@URL, or at another "
            "provider bedrock:MODEL,region=eu-west-1; with a price MODEL,input=3,output=15 or MODEL,price-as=MODEL; "
            "may be repeated", "ROUTE",
        ),
    ),
    "role": (
        list[str],
        _option(
            "--role", "which model the program's calls of a role go to: judge=MODEL, and the rest as in --fallback; "
            "without it the job's own; may be repeated", "NAME=ROUTE",
        ),
    ),
    "sub_model": (str, _option("--sub-model", "short for --role sub=ROUTE: the calls of a written program", "ROUTE")),
    "deadline": (str, _option("--deadline", "when to stop, partial: +6h, or an ISO 8601 time", "WHEN")),
    "goal_timeout": (str, _option("--goal-timeout", "longest that one row may take, retries included", "TIME")),
    "max_failed": (
        str,
        _option("--max-failed", "stop when so many rows have failed: a count, or a share like 10%", "N|SHARE"),
    ),
    "warm_prefix": (bool, _option("--warm-prefix", "one prompt ahead where many share a long cacheable prefix")),
    "hedge": (str, _option("--hedge", "ask again what has no answer after so long; both are paid", "TIME")),
    "wait_blocked": (
        str,
        _option("--wait-blocked", "how long to wait for a blocked account (default: end partial at once)", "TIME"),
    ),
    "price": (str, _option("--price", "input=3,output=15 and so on, USD per million tokens", "RATES")),
    "price_as": (
        str,
        _option(
            "--price-as", "the model that this one costs as much as: for names that no price is known for, and any "
            "server of --base-url", "MODEL",
        ),
    ),
    "cluster": (str, _option("--cluster", "auto (default), inline, local, or a Ray's address", "WHERE")),
    "sim": (
        list[str],
        _option("--sim", "setting or fault of the simulated provider, may be repeated", "NAME=VALUE"),
    ),
    "label": (
        list[str],
        _option("--label", "what traces, costs and budgets tell it by, a team say; may be repeated", "NAME=VALUE"),
    ),
    "notify": (
        str,
        _option(
            "--notify", "a URL (a Slack webhook, say) that is told, as JSON: 50, 80 and 100 % of a cap or budget, a "
            "pause, a breaker open for 5 minutes, a deadline at risk, the end; of this run, kept nowhere", "URL",
        ),
    ),
    "shards": (
        int,
        _option(
            "--shards", "deal the rows to so many child jobs, each with a journal and, on a cluster, a process of its "
            "own; caps, rates and priority hold for all of them together (default 1)", "N", 1,
        ),
    ),
    "fresh": (bool, _option("--fresh", "ask anew, whatever is remembered")),
    "overwrite": (bool, _option("--overwrite", "write over an output that exists")),
    "ordered": (bool, _option("--ordered", "results in the order of the input")),
    "prompt": (
        str,
        _option("--prompt", "asked of each row of a table: 'Label: {{column}}', or @FILE that holds it", "TEMPLATE"),
    ),
    "system": (str, _option("--system", "the system prompt of all rows, or @FILE", "TEXT")),
    "id": (str, _option("--id", "the column that results are known by (default: rows are numbered)", "COLUMN")),
    "schema": (
        str,
        _option(
            "--schema", "answers are JSON of this schema, and its fields columns: a file, or a Python type "
            "module:Type, file.py:Type", "FILE",
        ),
    ),
    "schema_as": (
        str,
        _option(
            "--schema-as", "how it is asked for: format (structured outputs; default), tool, or prompt, in words "
            "(default of --model local)", "FORM",
        ),
    ),
    "with_input": (bool, _option("--with-input", "results hold the input's other columns too")),
    "meta": (bool, _option("--meta", "results hold kind, model, attempts, latency, tokens, cost and reuse too")),
    "accept_failed": (
        str,
        _option("--accept-failed", "this share of failed rows still counts as complete", "SHARE"),
    ),
    "accept_partial": (bool, _option("--accept-partial", "a partial result counts as complete, if it was not drained")),
    "wait": (bool, _option("--wait", "where another run has the job, wait for it and take what came of it")),
    "no_keep_text": (
        bool, _option("--no-keep-text", "let prompts and replies leave the disk once their results are in the output")
    ),
    "as_json": (bool, _option("--json", "a summary as one JSON object, last on standard output")),
    "metrics_listen": (
        str, _option("--metrics-listen", "where Prometheus may read metrics while it runs", "HOST:PORT"),
    ),
    "log_format": (
        str, _option("--log-format", "text, or json: then all of standard error is JSON, an object a line", "FORM"),
    ),
    "log_level": (str, _option("--log-level", "debug, info, warning or error (default warning)", "LEVEL")),
    "verbose": (bool, _option("--verbose", "show where errors come from", short="-v")),
}
"""By the name of the field in ``Options``: the type, and how it is given."""
