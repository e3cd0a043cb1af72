"""Conversion of options to the records that a job runs under. Invalid values raise ``CommandError``."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import partial

import msgspec

from actors.channel.webhooks import InvalidWebhookUrl
from actors.channel.webhooks import checked as checked_notify
from actors.cli.options.errors import print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.jobs.limit_options import NONE, OPTIONS, bounded
from actors.jobs.option_parsing import (
    addresses,
    at_provider,
    fallback,
    labels,
    metrics_urls,
    provider,
    role,
    simulated,
)
from actors.jobs.unreadable_input import accepted_of
from actors.journal.journal import StateFolder, StoreError
from actors.journal.stores import STORES, examples, known, store_of
from actors.limits.shared_accounts import PLACE
from actors.providers.credentials.base_url import read_server_url
from actors.providers.credentials.credential import CredentialError, absolute, without_password
from actors.providers.registry import APIS, SIMULATED, Provider, of_api, of_options, over_api, row_of
from actors.routing.own_server import METRICS_OPTION
from actors.routing.routes import ModelSpec
from actors.simulator.settings import SimulatorSettings
from cortex.goals.shards import checked
from cortex.values.limits import BATCHES, MESSAGES, Limits


def folder_of(options: Options) -> StateFolder:
    """Return the state folder, created if needed. Raises ``StoreError``."""
    return _named(options).prepare()


def shared_at(options: Options) -> dict[str, str]:
    """Return the address of limits shared with other clusters, as an entry of a job's places; empty if none is given.

    Raises ``CommandError`` for an address that is no database, ``StoreError`` for an invalid one.
    """
    address = options.limits.strip()
    if address and not store_of(address).accounts:
        at = examples(tuple(store for store in STORES if store.accounts))
        raise CommandError(f"--limits {without_password(address)}: limits are shared in a database, at {at}")
    if address:
        _folder("--limits", address)
    return {PLACE: address} if address else {}


def named_folder(options: Options) -> StateFolder:
    """Return the state folder without creating or changing it, for a command that only looks: a database that lets it
    wait is told on standard error. Raises ``CommandError`` or ``StoreError``."""
    folder = _named(options)
    folder.tell_waits(partial(print_error, level=logging.WARNING))
    return folder


def _named(options: Options) -> StateFolder:
    if not known(options.state):
        text = without_password(options.state)
        raise CommandError(f"--state {text}: journals are kept in a folder of this machine, or at {examples(STORES)}")
    return _folder("--state", options.state)


def _folder(option: str, address: str) -> StateFolder:
    try:
        return StateFolder(address)
    except StoreError as error:
        raise StoreError(f"{option}: {error}") from None


def model_spec_of(options: Options, model: str) -> ModelSpec:
    """Return the model spec of the options. ``model``: the model's name, as given or as in the rows."""
    simulated = simulated_of(options.sim)
    if simulated is not None and model != SIMULATED:
        raise CommandError("--sim sets the simulated provider: give --model sim too")
    spec = ModelSpec(
        model=model, price=options.price, simulated=simulated, via=via_of(options),
        fallbacks=fallbacks_of(options) or (), roles=roles_of(options), price_as=options.price_as.strip(),
        api_key_file=absolute(options.api_key_file.strip()),
    )  # fmt: skip
    try:
        spec = at_provider(spec, named_provider(options))
    except ValueError as error:
        raise CommandError(f"--provider: {error}") from None
    return _with_metrics(spec.at_servers(base_urls_of(options) or [""]), options)


def _with_metrics(spec: ModelSpec, options: Options) -> ModelSpec:
    """Return the model spec with the URLs of its servers' metrics; those of other servers tell nothing of these."""
    named = metrics_from_of(options)
    try:
        return spec if named is None else spec.with_metrics(named)
    except ValueError as error:
        raise CommandError(f"{METRICS_OPTION}: {error}") from None


def changed_model_spec(options: Options, before: ModelSpec) -> ModelSpec:
    """Return the model spec of a resumed job: ``before``, with the options that were given."""
    simulated = simulated_of(options.sim)
    if simulated is not None and before.model != SIMULATED:
        raise CommandError("--sim sets the simulated provider, but this job asks another model: leave --sim out")
    fallbacks, servers = fallbacks_of(options), base_urls_of(options, before.row) or before.servers
    changed = msgspec.structs.replace(
        before, price=options.price or ("" if options.price_as else before.price),
        price_as=options.price_as.strip() or ("" if options.price else before.price_as),
        api_key_file=absolute(options.api_key_file.strip()) or before.api_key_file,
        simulated=simulated or before.simulated, fallbacks=before.fallbacks if fallbacks is None else fallbacks,
    )  # fmt: skip
    return _with_metrics(changed.at_servers(servers), options)


def via_of(options: Options) -> str:
    """Return the provider's API to use: single messages or message batches."""
    via = options.via.strip().lower() or MESSAGES
    if via not in (MESSAGES, BATCHES):
        raise CommandError(f"--via {options.via!r}: give {MESSAGES} or {BATCHES}")
    for name, answer in (
        ("--hedge", options.hedge), ("--timeout", options.timeout), ("--warm-prefix", options.warm_prefix),
        (METRICS_OPTION, options.metrics_from),
    ):  # fmt: skip
        if via == BATCHES and answer:
            raise CommandError(f"{name} is for single calls: leave it out with --via {BATCHES}")
    return via


def fallbacks_of(options: Options) -> tuple[ModelSpec, ...] | None:
    """Return the fallback routes in their order; empty for ``none``, None if the option was not given."""
    if not options.fallback:
        return None
    if options.fallback == [NONE]:
        return ()
    try:
        return tuple(map(fallback, options.fallback))
    except ValueError as error:
        raise CommandError(f"--fallback {error}") from None


def roles_of(options: Options) -> dict[str, ModelSpec]:
    """Return the model spec of each role, by name."""
    found: dict[str, ModelSpec] = {}
    for text in [*options.role, *([f"sub={options.sub_model}"] if options.sub_model else [])]:
        try:
            name, spec = role(text)
        except ValueError as error:
            raise CommandError(f"--role {error}") from None
        if name in found:
            raise CommandError(f"--role {name} is given twice")
        found[name] = spec
    return found


def labels_of(options: Options) -> dict[str, str]:
    """Return the labels of the job."""
    try:
        return labels((name, value) for name, _, value in (text.partition("=") for text in options.label))
    except ValueError as error:
        raise CommandError(f"--label: {error}") from None


def base_urls_of(options: Options, row: Provider | None = None) -> list[str]:
    """Return the addresses of the provider, or of servers of one model; empty if none was given. Refuses one with a
    password, since addresses are kept with the job. ``row``: the provider of a job that exists; None: as the options
    say."""
    row = row or row_of(provider_of(options).get("provider", ""))
    try:
        given = given_addresses(options.base_url)
        urls = [read_server_url("--base-url", each, row.appended, row.root) for each in given]
    except CredentialError as error:
        raise CommandError(str(error)) from None
    if any(without_password(url) != url for url in urls):
        do = f"set a key in CORTEX_SERVER_KEY or --api-key-file, or the whole address in {row.base_url_variable}"
        raise CommandError(f"--base-url holds a password, which would be stored: leave it out, and {do}")
    return urls


def given_addresses(texts: Iterable[str]) -> list[str]:
    """Return the addresses that values of ``--base-url`` name, as they are written, with those of files."""
    try:
        return addresses(texts)
    except ValueError as error:
        raise CommandError(f"--base-url: {error}") from None


def metrics_from_of(options: Options) -> tuple[str, ...] | None:
    """Return the URLs of the server's metrics, each once; empty for ``none``, None if the option was not given."""
    if not options.metrics_from:
        return None
    try:
        return metrics_urls(options.metrics_from)
    except ValueError as error:
        raise CommandError(f"{METRICS_OPTION}: {error}") from None


def provider_of(options: Options) -> dict[str, str]:
    """Return provider and place as fields of a model spec."""
    try:
        return provider(named_provider(options))
    except ValueError as error:
        raise CommandError(f"--provider: {error}") from None


def named_provider(options: Options) -> str:
    """Return provider and place as ``--provider`` takes them; of ``--api`` the provider that is meant by it. Raises
    ``CommandError`` for an API that is unknown, or is another than the provider's."""
    api, text = options.api.strip().lower(), options.provider
    if not api:
        return text
    address = "".join(given_addresses(options.base_url)[:1])
    row = of_options(options.model, text) if text.strip() else of_api(api, address)
    if row is None or api not in APIS:
        raise CommandError(f"--api {options.api!r}: give {', '.join(APIS)}")
    found = over_api(row, api)
    if found is None:
        raise CommandError(f"--api {api}: --provider {row.name} is asked by another: leave --api out")
    return ",".join([found.name, *text.split(",")[1:]])


def simulated_of(pairs: list[str]) -> SimulatorSettings | None:
    """Return settings and faults of the simulated provider from ``name=value`` pairs; None if there are none."""
    try:
        return simulated(pairs)
    except ValueError as error:
        raise CommandError(f"--sim {error}") from None


def limits_of(options: Options, before: Limits | None = None) -> Limits:
    """Return the job's limits: the given ones over those of ``before``."""
    asked = {name: getattr(options, name) for name in OPTIONS}
    try:
        return bounded(before or Limits(), asked, time.time())
    except ValueError as error:
        raise CommandError(str(error)) from None


def share_of(options: Options) -> Decimal:
    """Return the share of rows that may fail, from a text like 0.05 or 5%; default 0."""
    text = options.accept_failed.strip()
    if not text:
        return Decimal(0)
    try:
        share = Decimal(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except InvalidOperation:
        share = Decimal(-1)
    if not share.is_finite() or not 0 <= share <= 1:
        raise CommandError(f"--accept-failed {options.accept_failed!r}: give a share from 0 to 1, like 0.05 or 5%")
    return share


def accepted_bad_of(options: Options) -> Fraction | None:
    """Return the number of unreadable records with which a job begins; None: any number."""
    try:
        return accepted_of(options.accept_bad)
    except ValueError as error:
        raise CommandError(f"--accept-bad {error}") from None


def notify_of(options: Options) -> str:
    """Return the URL of the webhook for notifications."""
    try:
        return checked_notify(options.notify)
    except InvalidWebhookUrl as error:
        raise CommandError(str(error)) from None


def cluster_of(options: Options, before: str = "auto") -> str:
    """Return the place that the job runs in: the given one, else ``before``."""
    where = options.cluster.strip() or before
    if where not in ("auto", "inline", "local") and ":" not in where:
        raise CommandError(f"--cluster {where!r}: give auto, inline, local, or an address like host:6379")
    return where


def shared_cluster(options: Options) -> str:
    """Return the address of an existing cluster, from --cluster or RAY_ADDRESS; empty if there is none."""
    where = cluster_of(options)
    where = os.environ.get("RAY_ADDRESS", "") if where == "auto" else where
    return "" if where in ("inline", "local") else where


def shards_of(options: Options) -> int:
    """Return the number of child jobs for the rows; default 1. Raises ``CommandError``."""
    try:
        return checked(options.shards if options.shards is not None else 1)
    except ValueError as error:
        raise CommandError(f"--shards: {error}") from None
