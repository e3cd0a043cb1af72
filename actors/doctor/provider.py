"""Checks of the connection to a provider: certificates, proxy, TCP and TLS; and of its account, by the checks in its
row of ``actors.providers.registry``."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec

from actors.doctor.checks import DoctorOptions, Finding, ok, warning, wrong
from actors.doctor.connection_probe import connect_s, handshake, reason
from actors.providers.credentials.account import ProviderLocation, credential_of
from actors.providers.credentials.base_url import is_by_name
from actors.providers.credentials.credential import Credential, CredentialError, without_password
from actors.providers.credentials.environment import hidden_in, keys_in
from actors.providers.health.checks import ProviderChecks
from actors.providers.registry import CHAT_CLIENT, PROVIDERS, is_own_server, load, row_of
from actors.providers.remedies import NO_TLS
from actors.providers.transport.failures import NO_TLS_SPOKEN, ConfigurationFault
from actors.providers.transport.proxy_tls import proxy_for, ssl_context
from actors.routing.api_detection import got, told_apis
from actors.routing.model_spec import ModelSpec, SetupError
from actors.routing.own_server import METRICS_OPTION
from actors.routing.queue_metrics import NO_METRICS, queue_metrics
from actors.routing.server_discovery import looked_up, named_servers
from actors.routing.server_features import LOADED_PATH, OLLAMA_TOKENS, VERSION_PATH, is_ollama, loaded_tokens

SERVERS_AT_ONCE = 32
"""Further servers that are checked at the same time."""


def spec_of(asked: DoctorOptions) -> ModelSpec:
    """Return the model and its provider, as the user gave them."""
    facts = dict(asked.provider)
    spec = ModelSpec(
        model=asked.model, provider=facts.pop("provider", ""), base_url=asked.base_url.strip(),
        api_key_file=asked.api_key_file, metrics_from=asked.metrics_from or msgspec.UNSET,
    )  # fmt: skip
    spec = spec.placed(facts)
    if is_by_name(spec.base_url):
        return spec.at_servers([spec.base_url])
    return msgspec.structs.replace(spec, dns=asked.host) if asked.host else spec


def secrets_of(asked: DoctorOptions) -> list[Credential]:
    """Return the secrets that no finding may show: those of the given provider and those of the environment."""
    found = [*keys_in(asked.environ), *hidden_in(asked.environ)]
    for location in (spec_of(asked).location(), ProviderLocation()):
        with contextlib.suppress(CredentialError):  # reported by a finding
            found.append(credential_of(location, asked.environ, required=False))
    return found


def connection_findings(asked: DoctorOptions) -> Iterator[Finding]:
    """Check the whole connection, step by step; a failing step hides the later ones. Further servers are checked at the
    same time: of each, what is not in order is told, or that all is."""
    if not asked.remote:
        yield ok("endpoint", f"--model {asked.model} makes no calls over the network")
        return
    if is_by_name(asked.base_url):
        try:
            servers = asyncio.run(named_servers(spec_of(asked), None, looked_up))
        except SetupError as error:
            yield wrong("servers", str(error), "correct --base-url, or run the check where the job runs")
            return
        yield ok("servers", f"{servers.notice}: {', '.join(servers.found.addresses)}")
        own, *others = servers.open
        asked = msgspec.structs.replace(asked, base_url=own, further=tuple(others), host=servers.spec.dns or "")
    with ThreadPoolExecutor(max_workers=SERVERS_AT_ONCE) as pool:
        each = [
            msgspec.structs.replace(asked, base_url=url, further=(), metrics_from=asked.metrics_from[at : at + 1])
            for at, url in enumerate(asked.further, 1)
        ]
        checks = [pool.submit(lambda one: list(_findings_at(one)), one) for one in each]
        metrics = asked.metrics_from[:1] if each else asked.metrics_from
        yield from _findings_at(msgspec.structs.replace(asked, metrics_from=metrics))
        for one, found in zip(each, checks, strict=True):
            yield from _in_short(without_password(one.base_url), found.result())


def _in_short(address: str, found: list[Finding]) -> Iterator[Finding]:
    """Yield what is not in order at a further server, under its address; one line if all is."""
    told = [finding for finding in found if finding.state != "ok"]
    for finding in told:
        named = address in finding.message
        yield finding if named else msgspec.structs.replace(finding, message=f"{address}: {finding.message}")
    if not told:
        yield ok("endpoint", f"{address}: in order, as far as was checked above")


def _findings_at(asked: DoctorOptions) -> Iterator[Finding]:
    spec, notice = asyncio.run(told_apis(spec_of(asked), asked.environ, asked.timeout_s))
    if notice:
        yield ok("api", notice)
    location = spec.location()
    row = row_of(location.provider)
    checks: ProviderChecks = load(row.checks)(
        row, location, asked.environ, paid=asked.paid, timeout_s=asked.timeout_s
    )  # fmt: skip
    credential, found = checks.opened()
    yield from found
    if credential is not None and (yield from _reached(asked, credential, checks.address(credential))):
        yield from asyncio.run(checks.answers(credential, found))
        yield from _metrics(spec, credential, asked.timeout_s)
        if asked.model and spec.row.client == CHAT_CLIENT and is_own_server(credential.endpoint):
            yield from _context(spec, asked)


def _context(spec: ModelSpec, asked: DoctorOptions) -> Iterator[Finding]:
    """Check how long a prompt may be at Ollama, which cuts a longer one and answers what is left of it."""

    async def looked_at() -> tuple[bytes | None, bytes | None]:
        version, loaded = (got(spec, path, asked.environ, asked.timeout_s) for path in (VERSION_PATH, LOADED_PATH))
        return await version, await loaded

    version, loaded = asyncio.run(looked_at())
    if not is_ollama(version):
        return
    tokens, longer = loaded_tokens(loaded, asked.model), "start it with OLLAMA_CONTEXT_LENGTH=TOKENS"
    if tokens is None:
        text = f"Ollama cuts long prompts unsaid, and tells from which length on once {asked.model} is loaded"
        yield warning("context", text, f"give --paid, which loads it; where prompts are long, {longer}")
        return
    text = f"Ollama holds {tokens:,} tokens of prompt and answer for {asked.model}; longer prompts are cut unsaid"
    yield ok("context", text) if tokens > OLLAMA_TOKENS else warning("context", text, f"where that is short, {longer}")


def _metrics(spec: ModelSpec, credential: Credential, timeout_s: float) -> Iterator[Finding]:
    """Check the metrics that tell how many calls wait at a server of the user's own. That it has none is a warning if
    the user named them."""
    readings = asyncio.run(queue_metrics(spec, credential, timeout_s))
    if spec.metrics_from and not readings:
        where = without_password(credential.endpoint)
        yield wrong("metrics", f"{METRICS_OPTION}: {where} is no server of your own", "leave it out")
    for each in readings:
        if each.load is not None:
            yield ok("metrics", f"{each.url}: {each.load[0]:,} requests worked on, {each.load[1]:,} waiting")
        elif spec.metrics_from:
            yield warning("metrics", f"{each.url} {each.problem}", NO_METRICS)
        else:
            yield ok("metrics", f"{each.url} {each.problem}: the wait of calls is found in their answers")


def installations(asked: DoctorOptions) -> Iterator[Finding]:
    """Check the installations that providers need on this machine."""
    for row in PROVIDERS.values():
        if row.installation:
            yield from load(row.installation)(asked.model, asked.environ)


def _reached(asked: DoctorOptions, credential: Credential, url: str) -> Generator[Finding, None, bool]:
    """Check proxy, certificates and connection. Return whether the endpoint was reached."""
    shown = without_password(url)
    try:
        proxy = proxy_for(url, credential)
    except ConfigurationFault as error:
        yield wrong("proxy", str(error), "correct that variable, or name the host in NO_PROXY")
        return False
    yield from _trust(credential)
    if proxy is not None:
        yield from _first_hop("proxy", proxy, f"{without_password(proxy)} for {shown}", asked)
    elif credential.https_proxy or credential.http_proxy:
        yield ok("proxy", f"none for {shown}: the proxy that is set is for other hosts, or NO_PROXY names this one")
    else:
        yield ok("proxy", "none is set")
    try:
        if proxy is None:
            begun_s = connect_s(url, asked.timeout_s)
            secure = ""
            if url.startswith("https:"):
                secure = f", {handshake(url, ssl_context(credential), asked.timeout_s, credential.host)}"
            yield ok("endpoint", f"{shown}: connected in {1_000 * begun_s:.0f} ms{secure}")
    except ssl.SSLError as error:
        do = "set SSL_CERT_FILE to a file with the right authority: a company's proxy may have its own"
        if NO_TLS_SPOKEN.search(str(error)) or isinstance(error, ssl.SSLEOFError):
            do = NO_TLS
        yield wrong("endpoint", f"{shown}: no secure connection: {reason(error)}", do)
        return False
    except (OSError, ConfigurationFault) as error:
        do = "check the name and port, and whether this machine may reach them (firewall, proxy)"
        yield wrong("endpoint", f"{shown}: no connection: {reason(error)}", do)
        return False
    return True


def _trust(credential: Credential) -> Iterator[Finding]:
    if not (credential.ca_file or credential.ca_dir):
        yield ok("certificates", "those that the system trusts")
        return
    try:
        context = ssl_context(credential)
    except ConfigurationFault as error:
        yield wrong("certificates", str(error), "name an existing PEM file, or unset the variable")
        return
    where = f"SSL_CERT_FILE={credential.ca_file}" if credential.ca_file else f"SSL_CERT_DIR={credential.ca_dir}"
    many = context.cert_store_stats()["x509_ca"]
    if credential.ca_file and not many:
        yield wrong("certificates", f"{where} holds no authority", "name a PEM file with the authority's certificate")
        return
    yield ok("certificates", f"{where}" + (f": {many} authorities" if credential.ca_file else ""))


def _first_hop(check: str, url: str, text: str, asked: DoctorOptions) -> Iterator[Finding]:
    try:
        begun_s = connect_s(url, asked.timeout_s)
    except OSError as error:
        do = "correct HTTPS_PROXY, or name the host in NO_PROXY"
        yield wrong(check, f"{text}: no connection: {reason(error)}", do)
        return
    yield ok(check, f"{text}: connected in {1_000 * begun_s:.0f} ms")
