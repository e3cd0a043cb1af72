"""The road to the provider: address, proxy, certificates, key, account, model, and its clock against ours."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Generator, Iterator, Mapping
from email.utils import parsedate_to_datetime

import msgspec

from actors.doctor import clouds
from actors.doctor.checks import DoctorOptions, Finding, ok, warning, wrong
from actors.doctor.connection_probe import connect_s, handshake, reason
from actors.providers.credentials.clouds import ANTHROPIC
from actors.providers.credentials.credential import (  # fmt: skip
    DEFAULT_BASE_URL,
    Credential,
    CredentialError,
    checked_url,
    key_file,
    without_password,
)
from actors.providers.messages.client import COUNT_TOKENS, AnthropicModel
from actors.providers.messages.errors import ConfigurationFault
from actors.providers.messages.proxy_tls import proxy_for, ssl_context
from actors.routing.pricing import known
from policies.failures.failure import Failure, FailureKind

MODELS = "/v1/models"
_SKEW_S, _SKEW_FAR_S = 30.0, 300.0
"""A Retry-After in date form and a deadline are off by as much; far off, certificates and tokens are refused."""
_NO_SUCH_CALL = frozenset({404, 405, 501})
_ADVICE = {
    FailureKind.UNAUTHORISED: "set a good key in ANTHROPIC_API_KEY, or in the file of ANTHROPIC_API_KEY_FILE",
    FailureKind.BLOCKED: "put the account or the model right: credit, spend limit, the model's name",
    FailureKind.THROTTLED: "wait, or ask for higher limits: a job waits by itself",
    FailureKind.OVERLOADED: "wait: a job tries again by itself",
}
_MEANT = {
    401: "the key is not known there",
    403: "the key is known and may not do this: its workspace, its region, or what it was made for",
    402: "the account has no credit",
    407: "the proxy wants a user and a password",
}

_Answer = tuple[int, Mapping[str, str], bytes]


def credential_of(asked: DoctorOptions) -> Credential:
    """What the environment says; without a key, what it says of the road alone. Raises ``CredentialError``."""
    found = Credential.from_environ(asked.environ, asked.api_key_file)
    if found is None:
        found = Credential.from_environ({**asked.environ, "ANTHROPIC_API_KEY": "none"})
        assert found is not None, "there is a key now"
        found = msgspec.structs.replace(found, api_key="")
    return found


def road(asked: DoctorOptions) -> Iterator[Finding]:
    """All of it, as far as it goes: behind what is closed nothing can be seen."""
    if not asked.remote:
        yield ok("endpoint", f"--model {asked.model} asks nobody over the network")
        return
    if asked.provider.get("provider", ANTHROPIC) != ANTHROPIC:
        yield from _cloud(asked)
        return
    try:
        credential = credential_of(asked)
        url = checked_url("--base-url", asked.base_url.strip()) or credential.base_url or DEFAULT_BASE_URL
    except CredentialError as error:
        yield wrong("key", str(error), "put that variable right")
        return
    yield _key(asked, credential)
    if (yield from _reached(asked, credential, url)):
        yield from asyncio.run(_asked(asked, credential, url))


def _cloud(asked: DoctorOptions) -> Iterator[Finding]:
    credential, found = clouds.opened(asked)
    yield from found
    if credential is None:
        return
    reached = yield from _reached(asked, credential, clouds.address(credential))
    if not reached or not asked.model or any(each.state == "wrong" for each in found):
        return
    yield from asyncio.run(clouds.answers(asked, credential))
    if asked.paid:
        yield asyncio.run(_paid_there(asked, credential))


async def _paid_there(asked: DoctorOptions, credential: Credential) -> Finding:
    model = AnthropicModel(credential)
    try:
        return await _paid(asked, model)
    finally:
        await model.close()


def _reached(asked: DoctorOptions, credential: Credential, url: str) -> Generator[Finding, None, bool]:
    """Proxy, certificates, connection; whether there is one."""
    shown, proxy = without_password(url), proxy_for(url, credential)
    yield from _trust(credential)
    if proxy is not None:
        yield from _first_hop("proxy", proxy, f"{without_password(proxy)} goes for {shown}", asked)
    elif credential.https_proxy or credential.http_proxy:
        yield ok("proxy", f"none for {shown}: the one that is set is for others, or NO_PROXY names the host")
    else:
        yield ok("proxy", "none is set")
    try:
        if proxy is None:
            begun_s = connect_s(url, asked.timeout_s)
            secure = f", {handshake(url, ssl_context(credential), asked.timeout_s)}" if url.startswith("https:") else ""
            yield ok("endpoint", f"{shown}: connected in {1_000 * begun_s:.0f} ms{secure}")
    except ssl.SSLError as error:
        do = "set SSL_CERT_FILE to a file with the right authority: a company's proxy has its own"
        yield wrong("endpoint", f"{shown}: no secure connection: {reason(error)}", do)
        return False
    except (OSError, ConfigurationFault) as error:
        do = "see whether the name and port are right, and whether this machine may reach them (firewall, proxy)"
        yield wrong("endpoint", f"{shown}: no connection: {reason(error)}", do)
        return False
    return True


def _key(asked: DoctorOptions, credential: Credential) -> Finding:
    opens = bool(credential.api_key or credential.auth_token or credential.custom_headers)
    if not opens:
        return wrong("key", "there is none", "set ANTHROPIC_API_KEY, or give --api-key-file; --model sim needs none")
    where = "ANTHROPIC_AUTH_TOKEN" if credential.auth_token else "ANTHROPIC_CUSTOM_HEADERS"
    if credential.api_key:
        where = "the file of ANTHROPIC_API_KEY_FILE" if key_file(asked.environ) else "ANTHROPIC_API_KEY"
        where = "--api-key-file" if asked.api_key_file else where
    path = asked.api_key_file or key_file(asked.environ)
    if path and os.name == "posix" and os.stat(path).st_mode & 0o044 and os.stat(path).st_uid == os.geteuid():
        return warning("key", f"from {where}, which others may read", "chmod 600 it")
    return ok("key", f"from {where}; its fingerprint is {credential.fingerprint}")


def _trust(credential: Credential) -> Iterator[Finding]:
    if not (credential.ca_file or credential.ca_dir):
        yield ok("certificates", "those that the system trusts")
        return
    try:
        context = ssl_context(credential)
    except ConfigurationFault as error:
        yield wrong("certificates", str(error), "name a PEM file that is there, or unset it")
        return
    where = f"SSL_CERT_FILE={credential.ca_file}" if credential.ca_file else f"SSL_CERT_DIR={credential.ca_dir}"
    many = context.cert_store_stats()["x509_ca"]
    if credential.ca_file and not many:
        yield wrong("certificates", f"{where} holds no authority", "name a PEM file with the authority's certificate")
        return
    yield ok("certificates", f"{where}" + (f": {many} authorities" if credential.ca_file else ""))


def _first_hop(check: str, url: str, said: str, asked: DoctorOptions) -> Iterator[Finding]:
    try:
        begun_s = connect_s(url, asked.timeout_s)
    except OSError as error:
        do = "put HTTPS_PROXY right, or name the host in NO_PROXY"
        yield wrong(check, f"{said}: no connection: {reason(error)}", do)
        return
    yield ok(check, f"{said}: connected in {1_000 * begun_s:.0f} ms")


# -- what the provider says ------------------------------------------------------------------------------------------


async def _asked(asked: DoctorOptions, credential: Credential, url: str) -> list[Finding]:
    """Free calls with the key: the list of models, and the count of one prompt's tokens for the model that was named.

    One that is paid for only where the user asked for it.
    """
    model = AnthropicModel(credential, base_url=url)
    shown = without_password(url)
    try:
        begun_s = time.time()
        try:
            answer = await model.look(MODELS, None, asked.timeout_s)
        except Exception as error:
            return [_unanswered(model, shown, error)]
        found = [*_clock(answer[1], begun_s, time.time()), *_account(model, shown, answer)]
        if asked.model and all(each.state != "wrong" for each in found):
            found += await _model(asked, model)
        if asked.paid and asked.model and all(each.state != "wrong" for each in found):
            found.append(await _paid(asked, model))
        return found
    finally:
        await model.close()


def _unanswered(model: AnthropicModel, shown: str, error: Exception) -> Finding:
    failure = model.failure_of(error)
    do = "see the proxy, the certificates, the address"
    if failure.status == 407:
        do = "give the proxy's user and password in HTTPS_PROXY: http://USER:PASSWORD@HOST:PORT"
    return wrong("account", f"{shown} did not answer: {_words(failure)}", do)


def _words(failure: Failure) -> str:
    meant = _MEANT.get(failure.status, "")
    status = f" (HTTP {failure.status}{f': {meant}' if meant else ''})" if failure.status else ""
    return f"{failure.kind}{status}: {failure.message}"


def _refused(model: AnthropicModel, answer: _Answer, check: str, shown: str) -> Finding:
    failure = model.refusal_of(*answer)
    do = _ADVICE.get(failure.kind, "see what the address serves: cortex needs the Messages API")
    made = warning if failure.kind in (FailureKind.THROTTLED, FailureKind.OVERLOADED) else wrong
    return made(check, f"{shown}: {_words(failure)}", do)


def _account(model: AnthropicModel, shown: str, answer: _Answer) -> Iterator[Finding]:
    status = answer[0]
    if status in _NO_SUCH_CALL:
        said = f"{shown} answers, and has no list of models: whether it takes the key, only a paid call would show"
        yield warning("account", said, "give --paid and --model NAME to make one call of one token")
    elif not 200 <= status < 300:
        yield _refused(model, answer, "account", shown)
    else:
        yield ok("account", f"{shown} takes the key; what is left of its credit is not told by any free call")


def _clock(headers: Mapping[str, str], begun_s: float, ended_s: float) -> Iterator[Finding]:
    """Our clock against the Date of an answer, which was made between the two times and is cut to the second."""
    try:
        theirs_s = parsedate_to_datetime(headers.get("Date", "")).timestamp()
    except (TypeError, ValueError):
        yield ok("clock", "the endpoint tells no time to compare with")
        return
    skew_s = 0.0
    if theirs_s > ended_s:
        skew_s = theirs_s - ended_s
    elif theirs_s + 1.0 < begun_s:
        skew_s = theirs_s + 1.0 - begun_s
    said = f"this machine's clock is {abs(skew_s):.0f} s {'behind' if skew_s > 0 else 'ahead of'} the endpoint's"
    if abs(skew_s) > _SKEW_FAR_S:
        yield wrong("clock", said, "set it (NTP): certificates and deadlines depend on it")
    elif abs(skew_s) > _SKEW_S:
        yield warning("clock", said, "set it (NTP): deadlines depend on it")
    else:
        yield ok("clock", "it agrees with the endpoint's")


async def _model(asked: DoctorOptions, model: AnthropicModel) -> list[Finding]:
    name = asked.model
    body = msgspec.json.encode({"model": name, "messages": [{"role": "user", "content": "hello"}]})
    try:
        answer = await model.look(COUNT_TOKENS, body, asked.timeout_s)
    except Exception as error:
        return [_unanswered(model, f"--model {name}", error)]
    if answer[0] in _NO_SUCH_CALL and model.refusal_of(*answer).kind is not FailureKind.BLOCKED:
        said = f"whether {name} is there, only a paid call would show: tokens are not counted here"
        return [warning("model", said, "give --paid to make one call of one token")]
    if not 200 <= answer[0] < 300:
        return [_refused(model, answer, "model", name)]
    price, window = known(name)
    if price is None:
        said = f"{name} is there; its price is not known here, so a cap in money needs one"
        return [warning("model", said, "give --price input=...,output=... or --price-as MODEL with --max-cost")]
    return [ok("model", f"{name} is there, with a window of {window or 0:,} tokens and a known price")]


async def _paid(asked: DoctorOptions, model: AnthropicModel) -> Finding:
    body = msgspec.json.encode(
        {"model": asked.model, "max_tokens": 1, "messages": [{"role": "user", "content": "Say yes."}]}
    )
    came = await model.call(body, output_tokens_max=1, timeout_s=asked.timeout_s)
    if isinstance(came, Failure):
        do = _ADVICE.get(came.kind, "see what it says")
        return wrong("credit", f"a call of one token failed: {_words(came)}", do)
    used = f"{came.usage.input_tokens_billed} tokens in, {came.usage.output_tokens} out"
    return ok("credit", f"a call of one token was answered, and paid for ({used})")
