"""Table of providers: one row each, with everything that other packages need to know of a provider.

A provider serves models under accounts of its own: Anthropic, Amazon Bedrock, the simulator. A client speaks one wire
form over HTTP and may serve several providers: ``actors.providers.messages.client`` those of Claude's models,
``actors.providers.chat_completions.client`` OpenAI and all that follow it, ``actors.providers.responses.client`` the
newer API of OpenAI and Azure. Code that belongs to one provider alone
lives in a package of its own (``actors/providers/NAME``); the rows name it by text, ``module:attribute``, and ``load``
imports it when it is first used. Reading the table therefore imports nothing heavy, and a new provider is one package
and one row.

No other module decides by a provider's name.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

Reference = str
"""Place of a function, class or value, written ``module:attribute``; empty: none, the default behaviour holds."""

MESSAGES_CLIENT: Final = "actors.providers.messages.client:model_of"
CHAT_CLIENT: Final = "actors.providers.chat_completions.client:model_of"
RESPONSES_CLIENT: Final = "actors.providers.responses.client:model_of"
EMBEDDING_CLIENT: Final = "actors.providers.embeddings.client:model_of"
API_TITLES: Final[Mapping[Reference, str]] = {
    MESSAGES_CLIENT: "the Messages API", CHAT_CLIENT: "OpenAI's chat completions",
    RESPONSES_CLIENT: "OpenAI's Responses API",
}  # fmt: skip
"""APIs by client, for people."""
APIS: Final[Mapping[str, Reference]] = {
    "messages": MESSAGES_CLIENT, "chat": CHAT_CLIENT, "responses": RESPONSES_CLIENT,
}  # fmt: skip
"""Clients by the names that ``--api`` takes: Anthropic's Messages API, OpenAI's chat completions and Responses."""
KEY_CREDENTIAL: Final = "actors.providers.credentials.account:by_key"
SAMPLING: Final = ("temperature", "top_k", "top_p")
"""Fields that Anthropic's SDK types no more, but other servers take, those of the Messages API too."""
MESSAGES_PATHS: Final = (
    "/v1/messages/count_tokens", "/v1/messages/batches", "/v1/messages", "/v1/chat/completions", "/v1/completions",
    "/v1/responses", "/v1/models", "/v1",
)  # fmt: skip
"""Paths of the Messages API, and of the APIs of OpenAI that vLLM, llama.cpp, Ollama and LiteLLM serve beside it."""
CHAT_PARAMETERS: Final = (
    "chat_template_kwargs", "frequency_penalty", "logit_bias", "logprobs", "min_p", "presence_penalty",
    "prompt_cache_key", "reasoning_effort", "repetition_penalty", "safety_identifier", "seed", "store", "temperature",
    "top_k", "top_logprobs", "top_p", "verbosity",
)  # fmt: skip
"""Fields of chat completions that the canonical form does not have, sent as they are. ``top_k``, ``min_p``,
``repetition_penalty`` and ``chat_template_kwargs`` are of vLLM and SGLang
(https://docs.vllm.ai/en/stable/serving/openai_compatible_server.html), the others of OpenAI (``CompletionCreateParams``
of the package ``openai`` 3.57)."""
RESPONSES_PARAMETERS: Final = (
    "include", "logprobs", "max_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "reasoning", "reasoning_effort", "safety_identifier", "store", "temperature", "top_logprobs", "top_p", "truncation",
    "verbosity",
)  # fmt: skip
"""Fields of OpenAI's Responses API that the canonical form does not have (``ResponseCreateParams`` of the package
``openai`` 3.57), and ``logprobs``, ``reasoning_effort`` and ``verbosity`` as chat completions name them. Left out are
those that lead to what is kept at the provider (``previous_response_id``, ``conversation``, ``prompt``,
``background``)."""
CHAT_PATHS: Final = ("/chat/completions", "/completions", "/responses", "/embeddings", "/models", "/v1/messages")
"""Paths below the root of OpenAI's APIs, and that of the Messages API beside them."""
DEFAULT_CHECKS: Final = "actors.providers.health.checks:ProviderChecks"
TESTED: Final = ("real", "simulated", "batches simulated", "by hand")
"""Kinds of a provider's tests: calls to the service itself; whole jobs over HTTP against the simulator, which serves
the provider's API, or jobs of message batches alone; cases made by hand from the provider's documentation."""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a provider. ``name``, ``title``, ``client`` and ``telemetry`` are needed; the rest has defaults.

    The defaults fit a provider that is opened by an API key, is asked at one address, counts its rate limits by family
    of models, has no message batches and no free call but the count of tokens.
    """

    name: str
    """Name in ``--provider``, in a fallback (``NAME:MODEL``) and as the scheme of its endpoints (``NAME://…``). The
    default provider's endpoints are plain URLs."""
    title: str
    """Name for people."""

    # -- client ----------------------------------------------------------------------------------------------------
    client: Reference
    """Function ``(spec: ClientSpec) -> Model`` (``actors.providers.credentials.account``)."""
    embeddings: Reference = ""
    """Function ``(spec: ClientSpec) -> Model``, the client of embeddings; empty: the provider has none."""
    dialect: Reference = ""
    """Settings of a client that serves several providers, for this one; each client documents the type."""
    of_account: str = ""
    """Name of the row whose accounts and keys this one has, for another API of the same provider; empty: its own."""
    errors: Reference = ""
    """``policies.failures.error_vocabulary.ErrorVocabulary`` of the provider's own errors."""
    batches: bool = False
    """True if the client has message batches (``actors.ports.message_batches``), so that ``--via batches`` works."""
    quick_batches: bool = False
    """True if message batches end within seconds: they are then gathered and looked at as quickly."""

    # -- choice and location -----------------------------------------------------------------------------------------
    by_model: bool = False
    """True if the provider is chosen by ``--model NAME`` rather than by ``--provider``: it runs in this process or on
    this machine, and has neither address nor key of the user's."""
    on_this_machine: bool = False
    """True if only the machine of the driver can reach it, so that a job may not be sent elsewhere."""
    place: tuple[str, ...] = ()
    """Words that say where the user's account is, as in ``--provider NAME,region=R``."""
    place_form: str = ""
    """Form of those words in error messages: ``region=REGION``."""
    place_example: str = ""
    """Example of those words in help texts: ``region=eu-west-1``."""
    base_url: str = ""
    """Address where the user names none; empty: the client knows it (``address`` of the client)."""
    base_url_variable: str = ""
    """Environment variable with another address."""
    appended: tuple[str, ...] = ()
    """Paths that the client appends to the address, longest first: an address that ends in one means the part before
    (``actors.providers.credentials.base_url``)."""
    root: str = ""
    """Path between an address that has none and the client's own paths, ``/v1``; an address whose whole path it is
    means the part before. Empty: the client's paths begin at the address."""
    hosts: tuple[str, ...] = ()
    """Host names by which telemetry knows the provider behind a plain URL."""

    # -- credential --------------------------------------------------------------------------------------------------
    credential: Reference = KEY_CREDENTIAL
    """Function ``(row, location, environ, *, required) -> Credential``; raises ``CredentialError``. Unused where
    ``account`` is given."""
    account: Reference = ""
    """Function ``(row, location, environ, *, start) -> Account`` for a provider without a credential of the user's."""
    key_variable: str = ""
    """Environment variable that holds the API key."""
    key_file_variable: str = ""
    """Environment variable that names a file with the key."""
    server_key_variable: str = ""
    """Environment variable that holds the key of servers of the user's own (``is_own_server``), which is sent to them
    in place of the key in ``key_variable``; empty: the row has no such servers."""
    headers_variable: str = ""
    """Environment variable with lines ``name: value``, sent with every request."""
    setting_headers: str = ""
    """Prefix of headers that are settings, not secrets: their values stay readable in errors."""
    secret_variables: tuple[str, ...] = ()
    """Environment variables, besides the key's own, that are removed before a process is started and never shown."""
    hidden_variables: tuple[str, ...] = ()
    """Environment variables that are never shown and yet stay in the environment, since they open other things too."""
    advice: str = ""
    """Advice where calls are refused for their credentials; empty: as ``how_to_open`` says."""

    # -- packages ----------------------------------------------------------------------------------------------------
    extra: str = ""
    """Extra of the distribution that installs what the client needs."""
    modules: tuple[str, ...] = ()
    """Modules that this extra brings; the first one that is missing is named in the error."""
    on_nodes: tuple[str, ...] = ()
    """Distributions that each node of a Ray cluster must have for jobs of this provider."""
    agreeing: tuple[str, ...] = ()
    """Distributions whose major version must be the same on the driver and on every node."""
    imported: Mapping[str, str] = {}
    """Modules by distribution, for the doctor's search for files that hide a dependency."""

    # -- models, prices and limits -----------------------------------------------------------------------------------
    model_name: str = ""
    """Name of the model in requests, where ``--model`` names the provider itself; empty: as the user names it."""
    price_id: str = ""
    """Name of the provider in the ``genai-prices`` package; empty: no price is known but one given by hand."""
    surcharge: Reference = ""
    """Function ``(price, model, region) -> Price`` for what the package's prices leave out."""
    free: bool = False
    """True if its calls cost nothing, so that nothing can be billed beside a request's tokens."""
    context_window: int = 200_000
    """Tokens of prompt and reply together, for a model whose window is not known."""
    limits_each_model: bool = False
    """True if rate limits hold for each model by itself; False: models of one family share them."""
    concurrency_max: int | None = None
    """Most calls at once; None: as many as the job may make."""
    parameters: tuple[str, ...] = SAMPLING
    """Fields that requests may hold beside those of the canonical form (``actors.files.batch_request.PARAMS``)."""
    schema_as: str = "format"
    """Way in which a schema is asked for where ``--schema-as`` is not given (``cortex.programs.table.FORMS``)."""
    logprobs: bool = False
    """True if its client asks for log probabilities of tokens and the provider gives them."""
    structured: str = ""
    """Pattern of the names of models that certainly have structured outputs at the provider's own hosts; empty: none.
    Typed answers of flows are asked for by them, those of other models in words."""

    # -- health and telemetry ----------------------------------------------------------------------------------------
    checks: Reference = DEFAULT_CHECKS
    """Class of the doctor's checks, ``actors.providers.health.checks.ProviderChecks`` or derived from it."""
    installation: Reference = ""
    """Function ``(model, environ) -> Iterator[Finding]``: the doctor's check of what the provider needs installed."""
    telemetry: str
    """Value of ``gen_ai.provider.name`` in OpenTelemetry's conventions for generative AI."""

    # -- documentation (``actors.providers.overview``) ---------------------------------------------------------------
    limits_told: str = ""
    """Headers of its responses, or place in its errors, where the client reads the provider's rate limits; empty: it
    learns them from refusals."""
    tested: tuple[str, ...] = ("by hand",)
    """Kinds of its tests, of ``TESTED``."""

    @property
    def how_to_open(self) -> str:
        """Advice where calls are refused for their credentials, as a clause of an error message."""
        return self.advice or f"set a good key in {self.key_variable}, or --api-key-file"

    @property
    def option_form(self) -> str:
        """The provider as an error message asks for it: ``bedrock,region=REGION``."""
        return ",".join(filter(None, (self.name, self.place_form)))


CLAUDE_STRUCTURED: Final = r"claude-[a-z]+-(4-([5-9]|[1-9]\d)|[5-9]|[1-9]\d)(?!\d)"
"""Names of Claude models from version 4.5 on, which have structured outputs at Anthropic and on Amazon Bedrock
(https://platform.claude.com/docs/en/build-with-claude/structured-outputs). Google switches them off unless an
organisation allows them, and at Microsoft they are a preview."""

GPT_STRUCTURED: Final = r"^(gpt-4o-mini|gpt-4\.1|gpt-[5-9]|o[34])"
"""Names of OpenAI's models that have structured outputs in all their versions
(https://platform.openai.com/docs/guides/structured-outputs)."""

DEFAULT: Final = "anthropic"
"""Provider of a model for which none is named, and of any server of ``--base-url`` without ``--api``: it speaks the
Messages API."""
OPENAI: Final = "openai"
"""Provider of any server of ``--base-url`` with ``--api chat``."""
SIMULATED: Final = "sim"
LOCAL: Final = "local"

_CHAT: Final = "actors.providers.chat_completions"
_CHAT_ERRORS: Final = f"{_CHAT}.errors:CHAT_ERRORS"
_CHAT_CHECKS: Final = f"{_CHAT}.checks:ChatChecks"
_RESPONSES_CHECKS: Final = "actors.providers.responses.checks:ResponsesChecks"
_KEY_DIALECT: Final = "actors.providers.client.key_dialect"
_AZURE_SECRETS: Final = ("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PASSWORD")  # they open object stores as well
_AZURE_ADVICE: Final = (
    "set a good key in AZURE_OPENAI_API_KEY, or --api-key-file, or without a key see that the identity found by "
    "azure-identity has the role Cognitive Services OpenAI User"
)


def _compatible(name: str, title: str, base_url: str, key_variable: str, **more: Any) -> Provider:
    """Return the row of a provider that serves chat completions at one address, under keys of its own."""
    # No logprobs at Groq (https://console.groq.com/docs/openai), Mistral (https://docs.mistral.ai/api/) and Gemini
    # ("Unknown name logprobs"); Together takes a number in place of true (togethercomputer/openapi#104).
    facts = {"price_id": name, "telemetry": name, "dialect": f"{_CHAT}.dialect:DEFAULT"} | more
    return Provider(
        name=name, title=title, client=CHAT_CLIENT, errors=_CHAT_ERRORS, base_url=base_url,
        base_url_variable=f"{name.upper()}_BASE_URL", root="/v1", appended=CHAT_PATHS,
        hosts=(urlsplit(base_url).hostname or "",), key_variable=key_variable,
        key_file_variable=f"{key_variable}_FILE", context_window=128_000, limits_each_model=True,
        parameters=CHAT_PARAMETERS, checks=_CHAT_CHECKS, **facts,
    )  # fmt: skip


_ROWS: Final = (
    Provider(
        name=DEFAULT, title="Anthropic", client=MESSAGES_CLIENT, errors="actors.providers.anthropic.errors:ERRORS",
        dialect="actors.providers.anthropic.sdk:DIALECT", batches=True,
        base_url="https://api.anthropic.com", base_url_variable="ANTHROPIC_BASE_URL",
        appended=MESSAGES_PATHS, hosts=("anthropic.com",),
        credential="actors.providers.anthropic.account:credential",
        key_variable="ANTHROPIC_API_KEY", key_file_variable="ANTHROPIC_API_KEY_FILE",
        server_key_variable="CORTEX_SERVER_KEY",
        headers_variable="ANTHROPIC_CUSTOM_HEADERS", setting_headers="anthropic-",
        secret_variables=(
            "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS", "ANTHROPIC_IDENTITY_TOKEN",
            "ANTHROPIC_WEBHOOK_SIGNING_KEY",
        ),
        advice="set a good key in ANTHROPIC_API_KEY or its file",
        agreeing=("anthropic",), imported={"anthropic": "anthropic"},
        price_id="anthropic", parameters=(), structured=CLAUDE_STRUCTURED,
        checks="actors.providers.anthropic.checks:AnthropicChecks", telemetry="anthropic",
        limits_told="anthropic-ratelimit-*", tested=("simulated", "by hand"),
    ),
    Provider(
        name="bedrock", title="Amazon Bedrock", client=MESSAGES_CLIENT,
        errors="actors.providers.bedrock.errors:ERRORS", dialect="actors.providers.bedrock.sdk:DIALECT",
        place=("region",), place_form="region=REGION", place_example="region=eu-west-1",
        base_url_variable="ANTHROPIC_BEDROCK_BASE_URL", hosts=("amazonaws.com",),
        credential="actors.providers.bedrock.account:credential",
        headers_variable="ANTHROPIC_CUSTOM_HEADERS", setting_headers="anthropic-",
        secret_variables=("AWS_BEARER_TOKEN_BEDROCK",),
        hidden_variables=("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),  # they open object stores as well
        advice="set AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give "
        "the machine a role; see that it may call bedrock:InvokeModel",
        extra="bedrock", modules=("boto3", "botocore"), on_nodes=("boto3",),
        price_id="aws", limits_each_model=True, parameters=(), structured=CLAUDE_STRUCTURED,
        checks="actors.providers.bedrock.checks:BedrockChecks", telemetry="aws.bedrock",
    ),
    Provider(
        name="vertex", title="Google Vertex AI", client=MESSAGES_CLIENT,
        errors="actors.providers.vertex.errors:ERRORS", dialect="actors.providers.vertex.sdk:DIALECT",
        place=("region", "project"), place_form="region=REGION,project=PROJECT",
        place_example="region=global,project=P",
        base_url_variable="ANTHROPIC_VERTEX_BASE_URL", hosts=("googleapis.com",),
        credential="actors.providers.vertex.account:credential",
        headers_variable="ANTHROPIC_CUSTOM_HEADERS", setting_headers="anthropic-",
        advice="run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS, or give the "
        "machine an identity; see that it has the role Vertex AI User",
        extra="vertex", modules=("google.auth", "requests"), on_nodes=("google-auth",),
        price_id="google", surcharge="actors.providers.vertex.prices:with_surcharge", limits_each_model=True,
        parameters=(),
        checks="actors.providers.vertex.checks:VertexChecks", telemetry="gcp.vertex_ai",
    ),
    Provider(
        name="foundry", title="Microsoft Foundry", client=MESSAGES_CLIENT,
        errors="actors.providers.foundry.errors:ERRORS", dialect="actors.providers.foundry.sdk:DIALECT",
        place=("resource",), place_form="resource=NAME", place_example="resource=R",
        base_url_variable="ANTHROPIC_FOUNDRY_BASE_URL", appended=MESSAGES_PATHS, hosts=("services.ai.azure.com",),
        credential="actors.providers.foundry.account:credential",
        key_variable="ANTHROPIC_FOUNDRY_API_KEY",
        headers_variable="ANTHROPIC_CUSTOM_HEADERS", setting_headers="anthropic-",
        price_id="azure", parameters=(),
        telemetry="azure.ai.inference",
    ),
    Provider(
        name=OPENAI, title="OpenAI", client=CHAT_CLIENT, dialect=f"{_CHAT}.dialect:OPENAI", errors=_CHAT_ERRORS,
        base_url="https://api.openai.com", base_url_variable="OPENAI_BASE_URL", root="/v1", appended=CHAT_PATHS,
        batches=True, hosts=("openai.com",), credential=f"{_CHAT}.account:openai",
        key_variable="OPENAI_API_KEY", key_file_variable="OPENAI_API_KEY_FILE",
        server_key_variable="CORTEX_SERVER_KEY", secret_variables=("OPENAI_ADMIN_KEY",),
        setting_headers="openai-", price_id="openai", context_window=128_000, limits_each_model=True,
        parameters=CHAT_PARAMETERS, structured=GPT_STRUCTURED, logprobs=True, embeddings=EMBEDDING_CLIENT,
        checks=_CHAT_CHECKS, telemetry="openai", limits_told="x-ratelimit-*", tested=("simulated", "by hand"),
    ),
    Provider(
        name="azure", title="Azure OpenAI", client=CHAT_CLIENT, dialect=f"{_CHAT}.dialect:AZURE", errors=_CHAT_ERRORS,
        batches=True,
        place=("resource",), place_form="resource=NAME", place_example="resource=R",
        base_url_variable="AZURE_OPENAI_ENDPOINT", root="/openai/v1", appended=CHAT_PATHS,
        hosts=("openai.azure.com",), credential=f"{_CHAT}.account:azure",
        key_variable="AZURE_OPENAI_API_KEY", hidden_variables=_AZURE_SECRETS, advice=_AZURE_ADVICE, price_id="azure",
        context_window=128_000, limits_each_model=True, parameters=CHAT_PARAMETERS, logprobs=True,
        embeddings=EMBEDDING_CLIENT, checks=_CHAT_CHECKS,
        telemetry="azure.ai.openai", limits_told="x-ratelimit-*",
    ),
    Provider(
        name="openai-responses", title="OpenAI", client=RESPONSES_CLIENT, of_account=OPENAI, errors=_CHAT_ERRORS,
        batches=True,
        base_url="https://api.openai.com", base_url_variable="OPENAI_BASE_URL", root="/v1", appended=CHAT_PATHS,
        hosts=("openai.com",), credential=f"{_CHAT}.account:openai",
        key_variable="OPENAI_API_KEY", key_file_variable="OPENAI_API_KEY_FILE",
        server_key_variable="CORTEX_SERVER_KEY", secret_variables=("OPENAI_ADMIN_KEY",),
        setting_headers="openai-", price_id="openai", context_window=128_000, limits_each_model=True,
        parameters=RESPONSES_PARAMETERS, structured=GPT_STRUCTURED, logprobs=True, checks=_RESPONSES_CHECKS,
        telemetry="openai", limits_told="x-ratelimit-*", tested=("simulated", "by hand"),
    ),
    Provider(
        name="azure-responses", title="Azure OpenAI", client=RESPONSES_CLIENT, of_account="azure", errors=_CHAT_ERRORS,
        dialect=f"{_KEY_DIALECT}:AZURE", batches=True,
        place=("resource",), place_form="resource=NAME", place_example="resource=R",
        base_url_variable="AZURE_OPENAI_ENDPOINT", root="/openai/v1", appended=CHAT_PATHS,
        hosts=("openai.azure.com",), credential=f"{_CHAT}.account:azure",
        key_variable="AZURE_OPENAI_API_KEY", hidden_variables=_AZURE_SECRETS, advice=_AZURE_ADVICE, price_id="azure",
        context_window=128_000, limits_each_model=True,
        parameters=RESPONSES_PARAMETERS, logprobs=True, checks=_RESPONSES_CHECKS, telemetry="azure.ai.openai",
        limits_told="x-ratelimit-*",
    ),
    _compatible(
        "gemini", "Google Gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY",
        price_id="google", telemetry="gcp.gemini", embeddings=EMBEDDING_CLIENT, dialect=f"{_CHAT}.dialect:GEMINI",
        batches=True, tested=("batches simulated", "by hand"),
    ),
    _compatible(
        "openrouter", "OpenRouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", logprobs=True,
        embeddings=EMBEDDING_CLIENT,
    ),
    Provider(
        name="vertex-gemini", title="Gemini on Google Vertex AI", client=CHAT_CLIENT, dialect=f"{_CHAT}.dialect:VERTEX",
        errors=_CHAT_ERRORS, place=("region", "project"), place_form="region=REGION,project=PROJECT",
        place_example="region=global,project=P", appended=CHAT_PATHS,
        credential="actors.providers.vertex.account:credential",
        advice="run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS, or give the "
        "machine an identity; see that it has the role Vertex AI User",
        extra="vertex", modules=("google.auth", "requests"), on_nodes=("google-auth",),
        price_id="google", limits_each_model=True, context_window=128_000, parameters=CHAT_PARAMETERS,
        checks="actors.providers.vertex.checks:VertexChecks", telemetry="gcp.vertex_ai",
    ),
    _compatible(
        "groq", "Groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", schema_as="tool",
        dialect=f"{_CHAT}.dialect:OPENAI", limits_told="x-ratelimit-*",
    ),
    _compatible(
        "mistral", "Mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", telemetry="mistral_ai",
        limits_told="x-ratelimit-*", embeddings=EMBEDDING_CLIENT, dialect=f"{_CHAT}.dialect:MISTRAL", batches=True,
        tested=("batches simulated", "by hand"),
    ),
    _compatible(
        "together", "Together AI", "https://api.together.xyz/v1", "TOGETHER_API_KEY", embeddings=EMBEDDING_CLIENT,
        limits_told="x-ratelimit-*",
    ),
    _compatible(
        "deepseek", "DeepSeek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", schema_as="tool", logprobs=True,
        dialect=f"{_CHAT}.dialect:DEEPSEEK",
    ),
    Provider(
        name=LOCAL, title="local model", client=CHAT_CLIENT, dialect=f"{_CHAT}.dialect:LLAMA_CPP", errors=_CHAT_ERRORS,
        by_model=True, on_this_machine=True, root="/v1", appended=CHAT_PATHS,
        account="actors.providers.local.account:account", free=True, context_window=4_096,
        model_name="smollm2-135m-instruct", concurrency_max=8,  # twice the slots of the server: the rest wait there
        parameters=CHAT_PARAMETERS, structured=".", logprobs=True,
        installation="actors.providers.local.checks:installation", telemetry="cortex.local",
    ),
    Provider(
        name=SIMULATED, title="simulated provider", client="actors.simulator.frontends.account:model_of", by_model=True,
        account="actors.simulator.frontends.account:account", batches=True, quick_batches=True, telemetry="cortex.sim",
        structured=".", logprobs=True, embeddings="actors.simulator.frontends.account:model_of",
    ),
)  # fmt: skip

PROVIDERS: Final[dict[str, Provider]] = {row.name: row for row in _ROWS}
"""Rows by name, in the order in which messages list them. A test may add a row of its own."""


def row_of(name: str) -> Provider:
    """Row of a provider; the default provider's for an empty name. Raises ``KeyError`` for an unknown one."""
    return PROVIDERS[name or DEFAULT]


def named() -> tuple[str, ...]:
    """Names that ``--provider`` takes."""
    return tuple(row.name for row in PROVIDERS.values() if not row.by_model)


def apart() -> tuple[str, ...]:
    """Names that ``--model`` takes for a provider: such a model is asked of nobody over the network."""
    return tuple(row.name for row in PROVIDERS.values() if row.by_model)


def has_structured(provider: str, endpoint: str, model: str) -> bool:
    """Return whether a model at an endpoint certainly has structured outputs (``Provider.structured``)."""
    row = row_of(provider)
    host = urlsplit(address_in(endpoint)).hostname or ""
    own = row.by_model or not address_in(endpoint) or any(_is_below(host, each) for each in row.hosts)
    return bool(row.structured) and own and re.search(row.structured, model) is not None


def place_words() -> tuple[str, ...]:
    """Words of all providers that say where an account is, each once."""
    return tuple(dict.fromkeys(word for row in PROVIDERS.values() for word in row.place))


def of_model(model: str) -> Provider | None:
    """Row of the provider that this ``--model`` names; None for the name of a provider's model."""
    row = PROVIDERS.get(model)
    return row if row is not None and row.by_model else None


def of_options(model: str, provider: str) -> Provider:
    """Row of the provider that ``--model`` and ``--provider`` name; the default row where the name is unknown, which is
    refused elsewhere."""
    name = provider.partition(",")[0].strip().lower()
    return of_model(model) or PROVIDERS.get(name) or PROVIDERS[DEFAULT]


def of_endpoint(endpoint: str) -> Provider:
    """Row of the provider that a route's endpoint belongs to.

    Endpoints are written ``NAME://PLACE`` or ``NAME://PLACE+ADDRESS`` for all providers but the default one, whose
    endpoints are plain URLs, and those without an address, which are ``NAME`` or ``NAME:DETAIL``. An endpoint of none
    of these forms, as a model object of the user's may have, gets the default row.
    """
    found = PROVIDERS.get(endpoint.partition(":")[0])
    return found if found is not None else PROVIDERS[DEFAULT]


def address_in(endpoint: str) -> str:
    """Address in a route's endpoint; empty where only the provider's client knows it."""
    has_scheme = endpoint.partition("://")[0] in PROVIDERS
    return endpoint.partition("+")[2] if has_scheme else endpoint


def is_own_server(endpoint: str, row: Provider | None = None) -> bool:
    """Return True for the address of a server that belongs to none of the providers of its API: it may do without a
    key.

    ``endpoint``: a route's endpoint, or a plain URL that is asked under ``row``, which must have such servers
    (``Provider.server_key_variable``).
    """
    row = row or of_endpoint(endpoint)
    address = address_in(endpoint)
    if not row.server_key_variable or "://" not in address:
        return False
    try:
        host = (urlsplit(address).hostname or "").rstrip(".")
    except ValueError:
        return False
    same = (each for each in PROVIDERS.values() if each.client == row.client)
    return bool(host) and not any(_is_below(host, name) for each in same for name in each.hosts)


def of_api(api: str, base_url: str) -> Provider | None:
    """Row under which an address is asked by an API of ``APIS``: that of the provider whose host it is, else the one
    for servers of the user's own; None for an unknown name of an API."""
    rows = [row for row in PROVIDERS.values() if row.client == APIS.get(api) and not row.by_model]
    try:
        host = urlsplit(base_url if "://" in base_url else f"//{base_url}").hostname or ""
    except ValueError:
        host = ""
    there = (row for row in rows if not row.place and any(_is_below(host, name) for name in row.hosts))
    return next(there, None) or next((row for row in rows if row.server_key_variable), None)


def over_api(row: Provider, api: str) -> Provider | None:
    """Row of the same accounts that is asked by an API of ``APIS``; None where the provider has no such API here."""
    account = row.of_account or row.name
    same = (each for each in PROVIDERS.values() if account in (each.name, each.of_account))
    return next((each for each in same if each.client == APIS.get(api)), None)


def api_at(endpoint: str) -> str:
    """Name for people of the API by which an endpoint is asked."""
    return API_TITLES.get(of_endpoint(endpoint).client, "the provider's API")


def how_to_open(endpoint: str) -> str:
    """Return the advice where calls to an endpoint are refused for their credentials (``Provider.how_to_open``)."""
    row = of_endpoint(endpoint)
    if is_own_server(endpoint):
        where = f"{row.server_key_variable} or --api-key-file"
        return f"set the key of that server in {where}, or correct it where it is set"
    return row.how_to_open


def _is_below(host: str, domain: str) -> bool:
    return f".{host}".endswith(f".{domain}")


def telemetry_name(endpoint: str) -> str:
    """Value of ``gen_ai.provider.name`` for a route's endpoint.

    A server at an unknown host is taken for the default provider, whose API it speaks. A model object of this process
    gets a name of ours, ``cortex.…``.
    """
    scheme, separator, _ = endpoint.partition("://")
    if scheme in PROVIDERS:
        return PROVIDERS[scheme].telemetry
    if not separator:
        return f"cortex.{endpoint.partition(':')[0]}"
    known = (row for row in PROVIDERS.values() if any(host in endpoint for host in row.hosts))
    return next(known, PROVIDERS[DEFAULT]).telemetry


def stand_in_keys(key: str) -> dict[str, str]:
    """Environment with ``key`` as the API key of each provider that needs nothing else, for what is priced or checked
    without a key and never sent."""
    rows = PROVIDERS.values()
    return {row.key_variable: key for row in rows if row.key_variable and not row.place}


def load(reference: Reference) -> Any:
    """Import and return the object that a reference of a row names. Raises ``ImportError`` or ``AttributeError`` where
    it is not there."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # the latter for a module that was put there by hand
        return module in sys.modules


def missing_extra(row: Provider) -> str:
    """Return a line that says what to install for a provider; empty where everything is installed."""
    for name in row.modules:
        if not is_installed(name):
            how = f"pip install 'cortex-bounded-calls[{row.extra}]'"
            return f"--provider {row.name}: {name} is not installed: {how}"
    return ""
