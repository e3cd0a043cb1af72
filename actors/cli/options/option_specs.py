"""Declarations of the shared options: flag, environment variable, form of the value and line of help."""

from __future__ import annotations

from typing import Any

import typer

from actors.providers.registry import DEFAULT, Provider, apart, named, row_of


def _option(flag: str, text: str, metavar: str | None = None, least: int | None = None, short: str = "") -> Any:
    variable = "CORTEX_DEBUG" if flag == "--verbose" else "CORTEX_" + flag.removeprefix("--").replace("-", "_").upper()
    flags = (flag, short) if short else (flag,)
    return typer.Option(*flags, help=text, metavar=metavar, envvar=variable, show_default=False, min=least)


_PROVIDERS = [row_of(name) for name in named()]


def _listed(rows: list[Provider]) -> str:
    """Names of providers for people: ``anthropic (default), bedrock, vertex or foundry``."""
    names = [f"{row.name} (default)" if row.name == DEFAULT else row.name for row in rows]
    return f"{', '.join(names[:-1])} or {names[-1]}"


DECLARED: dict[str, tuple[Any, Any]] = {
    "model": (str, _option("--model", f"{', '.join(apart())}, or a provider's model; replaces the rows' own", "NAME")),
    "provider": (
        str,
        _option(
            "--provider",
            f"service of the model: {_listed(_PROVIDERS)}, with its place unless the environment gives "
            f"it: {'; '.join(f'{row.name},{row.place_example}' for row in _PROVIDERS if row.place)}",
            "NAME",
        ),
    ),
    "api": (
        str,
        _option("--api", "API by which the provider, or the server of --base-url, is asked: messages, or OpenAI's chat "
                "(completions) or responses; that of a server is by default found by a request that costs nothing",
                "NAME"),
    ),
    "base_url": (
        list[str],
        _option(
            "--base-url",
            "address of the provider, or of any server that speaks its API (--api); repeated, or @FILE with one a "
            "line: servers of one model that share the work; dns+http://NAME:PORT: each address of the name is one",
            "URL",
        ),
    ),
    "metrics_from": (
        list[str],
        _option(
            "--metrics-from",
            "address of the metrics of the server of --base-url that tell how many calls wait (vLLM, SGLang, "
            "llama.cpp, TGI), where they are not at its own /metrics; may be repeated, for replicas; none removes them",
            "URL",
        ),
    ),
    "api_key_file": (
        str,
        _option(
            "--api-key-file",
            "a file that holds the key; read again when the provider refuses the key, so that a key "
            "is rotated without a stop",
            "FILE",
        ),
    ),
    "via": (
        str,
        _option("--via", "messages (default), or batches: half the price, an answer may take a day", "API"),
    ),
    "job": (str, _option("--job", "the job's name (default: derived from program, input and output)", "NAME")),
    "state": (str, _option("--state", "folder of the journals (default .cortex), or postgresql://HOST/DB", "PLACE")),
    "limits": (
        str,
        _option(
            "--limits",
            "postgresql://HOST/DB in which several clusters of one account share its limits and the budgets of labels",
            "PLACE",
        ),
    ),
    "max_cost": (str, _option("--max-cost", "cap on the job's cost, in USD; never exceeded", "USD")),
    "max_job_tokens": (str, _option("--max-job-tokens", "cap on the job's tokens, input and output together", "N")),
    "max_output_tokens": (int, _option("--max-output-tokens", "most tokens of one reply", "N", 1)),
    "prompt_tokens_max": (int, _option("--prompt-tokens-max", "most tokens of one prompt (M)", "N", 1)),
    "concurrency": (
        str, _option("--concurrency", "most calls in flight at once (default 100; at a server of your own, none)", "N"),
    ),
    "rpm": (str, _option("--rpm", "most requests a minute of this job, within the provider's limit", "N")),
    "itpm": (str, _option("--itpm", "most input tokens a minute", "N")),
    "otpm": (str, _option("--otpm", "most output tokens a minute", "N")),
    "headroom": (str, _option("--headroom", "share of the provider's limits to leave to other traffic", "SHARE")),
    "priority": (str, _option("--priority", "weight among jobs that share a limit (default 1)", "WEIGHT")),
    "fallback": (
        list[str],
        _option(
            "--fallback",
            "route of calls while the breaker of the model is open: MODEL, MODEL@URL, or at another "
            "provider bedrock:MODEL,region=eu-west-1; with a price MODEL,input=3,output=15 or MODEL,price-as=MODEL; "
            "may be repeated",
            "ROUTE",
        ),
    ),
    "role": (
        list[str],
        _option(
            "--role",
            "model for the program's calls of a role: judge=MODEL, in the form of --fallback; default: the "
            "job's model; may be repeated",
            "NAME=ROUTE",
        ),
    ),
    "sub_model": (str, _option("--sub-model", "short for --role sub=ROUTE: the calls of a written program", "ROUTE")),
    "deadline": (str, _option("--deadline", "time at which the job stops, partial: +6h, or an ISO 8601 time", "WHEN")),
    "goal_timeout": (str, _option("--goal-timeout", "longest time for one row, retries included", "TIME")),
    "timeout": (str, _option("--timeout", "longest time for one attempt, else by request and answers so far", "TIME")),
    "max_failed": (
        str,
        _option(
            "--max-failed",
            "stop when this many rows have failed, unreadable records of the input included: a count, or a share "
            "like 10%",
            "N|SHARE",
        ),
    ),
    "warm_prefix": (bool, _option("--warm-prefix", "send one prompt first where many share a long cacheable prefix")),
    "hedge": (str, _option("--hedge", "ask again after this long without an answer; both calls are paid", "TIME")),
    "wait_blocked": (
        str,
        _option("--wait-blocked", "longest wait for a blocked account (default: end partial at once)", "TIME"),
    ),
    "price": (str, _option("--price", "input=3,output=15 and so on, USD per million tokens", "RATES")),
    "price_as": (
        str,
        _option(
            "--price-as",
            "use the price of this model: for models without a known price, and for any server of --base-url",
            "MODEL",
        ),
    ),
    "cluster": (str, _option("--cluster", "auto (default), inline, local, or a Ray's address", "WHERE")),
    "sim": (
        list[str],
        _option("--sim", "setting or fault of the simulated provider; may be repeated", "NAME=VALUE"),
    ),
    "label": (
        list[str],
        _option("--label", "label of the job in traces, costs and budgets: team=search; may be repeated", "NAME=VALUE"),
    ),
    "notify": (
        str,
        _option(
            "--notify",
            "webhook (of Slack, say) that gets as JSON: 50, 80 and 100 % of a cap or budget, a pause, a "
            "breaker open for 5 minutes, a deadline at risk, the end; for this run only, never stored",
            "URL",
        ),
    ),
    "shards": (
        int,
        _option(
            "--shards",
            "split the rows over N child jobs, each with its own journal and, on a cluster, its own "
            "process; caps, rates and priority hold for all of them together (default 1)",
            "N",
            1,
        ),
    ),
    "fresh": (bool, _option("--fresh", "ask anew, without replies of earlier runs")),
    "overwrite": (bool, _option("--overwrite", "overwrite an existing output")),
    "ordered": (bool, _option("--ordered", "results in the order of the input")),
    "prompt": (
        str,
        _option("--prompt", "prompt for each row of a table: 'Label: {{column}}', or @FILE that holds it", "TEMPLATE"),
    ),
    "system": (str, _option("--system", "system prompt of all rows, or @FILE", "TEXT")),
    "id": (str, _option("--id", "column that identifies results (default: rows are numbered)", "COLUMN")),
    "schema": (
        str,
        _option(
            "--schema",
            "JSON schema of the answers, whose fields become columns: a file, or a Python type "
            "module:Type, file.py:Type",
            "FILE",
        ),
    ),
    "schema_as": (
        str,
        _option(
            "--schema-as",
            "how the schema is sent: format (structured outputs; default), tool, or prompt, in words",
            "FORM",
        ),
    ),
    "with_input": (bool, _option("--with-input", "add the other columns of the input to the results")),
    "meta": (bool, _option("--meta", "add kind, model, attempts, latency, tokens, cost and reuse to the results")),
    "logprobs": (
        bool,
        _option(
            "--logprobs",
            "add the probability of each choice of the schema (enum, Literal, bool), or of the whole answer, from the "
            "log probabilities of its tokens: chat completions alone have them",
        ),
    ),
    "top_logprobs": (
        int, _option("--top-logprobs", "alternatives that --logprobs requests for each token (default 20)", "N", 0)
    ),
    "votes": (
        int,
        _option(
            "--votes",
            "ask each row up to N times, until its choices are decided; further votes that could not change them are "
            "not paid",
            "N",
        ),
    ),
    "votes_by": (
        str,
        _option(
            "--votes-by", "how --votes decides: count (default), or probability, by the mean of --logprobs", "WAY"
        ),
    ),
    "answer_as": (str, _option("--answer-as", "name of the column 'answer' of the results", "NAME")),
    "columns_prefix": (
        str,
        _option(
            "--columns-prefix",
            "text before the names of the results' own columns: answer, error and those of --meta",
            "TEXT",
        ),
    ),
    "on_cut": (
        str,
        _option(
            "--on-cut",
            "a row whose answer was cut at its bound on tokens: fail (default), keep the fragment as its answer, or "
            "longer: ask again with twice the bound, up to 8 times of it",
            "HOW",
        ),
    ),
    "encoding": (
        str, _option("--encoding", "encoding of the input: cp1252, utf-16, cp932 (default: UTF-8, or found)", "NAME")
    ),
    "delimiter": (
        str, _option("--delimiter", "character between the cells of a CSV input, or tab (default: found)", "C")
    ),
    "quoting": (
        str,
        _option(
            "--quoting",
            "quotes in a CSV input: minimal (default; a quote in a quoted cell is doubled), none (quotes are text), "
            "or backslash (a quote in a quoted cell follows a backslash)",
            "FORM",
        ),
    ),
    "skip_lines": (int, _option("--skip-lines", "lines above the header of a CSV input that are not read", "N", 0)),
    "no_header": (
        bool, _option("--no-header", "the CSV input has no header: its columns are column_1, column_2 and so on")
    ),
    "bad": (
        str,
        _option("--bad", "file for unreadable records, with place, reason, text (default: OUTPUT.bad.jsonl)", "FILE"),
    ),
    "accept_bad": (
        str,
        _option(
            "--accept-bad",
            "most unreadable records of the input with which the job begins: a share, a count, or 100% for any number "
            "(default 1%)",
            "N|SHARE",
        ),
    ),
    "accept_failed": (
        str,
        _option("--accept-failed", "largest share of failed rows that counts as complete", "SHARE"),
    ),
    "accept_partial": (bool, _option("--accept-partial", "count a partial result as complete, unless it was drained")),
    "wait": (bool, _option("--wait", "if another run has the job, wait for its end and return its result")),
    "no_keep_text": (
        bool,
        _option("--no-keep-text", "delete prompts and replies from disk once their results are in the output"),
    ),
    "as_json": (bool, _option("--json", "print a summary as one JSON object, last on standard output")),
    "metrics_listen": (
        str,
        _option("--metrics-listen", "address at which Prometheus may read metrics during the run", "HOST:PORT"),
    ),
    "log_format": (
        str,
        _option("--log-format", "text, or json: all of standard error is JSON, an object a line", "FORM"),
    ),
    "log_level": (str, _option("--log-level", "debug, info, warning or error (default warning)", "LEVEL")),
    "verbose": (bool, _option("--verbose", "show tracebacks of errors", short="-v")),
}
"""Field name in ``Options`` -> type of the value and Typer option."""
