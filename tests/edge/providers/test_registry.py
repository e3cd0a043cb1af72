"""The table of providers: every reference of a row leads somewhere, and what journals hold of providers stays as it was."""

from __future__ import annotations

import ast
import subprocess
import sys

import msgspec
import pytest

from actors.providers.credentials.credential import CloudPlatform, Credential
from actors.providers.local.model import LOCAL_SLOTS
from actors.providers.pools import pool_of
from actors.providers.registry import (
    DEFAULT,
    PROVIDERS,
    Provider,
    has_structured,
    load,
    named,
    of_endpoint,
    row_of,
    telemetry_name,
)  # fmt: skip
from actors.routing.routes import ModelSpec, destination, remember
from actors.simulator.settings import SimulatorSettings
from cortex.values.limits import Limits
from tests.support.repository_rules import ROOT, sources

KEYS = {
    "ANTHROPIC_API_KEY": "sk-made-up-0123456789", "AWS_ACCESS_KEY_ID": "AKIAMADEUP", "AWS_SECRET_ACCESS_KEY": "s" * 20,
    "ANTHROPIC_FOUNDRY_API_KEY": "made-up-foundry",
}  # fmt: skip
BEDROCK = {"provider": "bedrock", "region": "eu-west-1"}


@pytest.mark.parametrize("row", PROVIDERS.values(), ids=lambda row: row.name)
def test_each_reference_of_a_row_is_there(row: Provider) -> None:
    references = (row.client, row.dialect, row.errors, row.credential, row.account, row.surcharge, row.checks, row.installation)
    assert all(load(reference) is not None for reference in references if reference)
    assert row.title and row.telemetry
    assert bool(row.place) == bool(row.place_form) == bool(row.place_example)
    assert row.by_model == bool(row.account) != (row.name in named())


def test_reading_the_table_imports_nothing_heavy() -> None:
    code = (
        "import sys, actors.providers.registry; "
        "print(*[name for name in sys.modules if name.split('.')[0] in ('aiohttp', 'anthropic', 'boto3', 'google', 'httpx2')]);"
        "print(*[name for name in sys.modules if name.startswith('actors.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "actors.providers actors.providers.registry"]


def _named_in(source: str) -> list[str]:
    """Names and variables of providers among the texts of a module that are one line long."""
    rows = [row_of(name) for name in named()]
    keys = {name for row in rows for name in (row.key_variable, row.key_file_variable, row.base_url_variable) if name}
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    texts = [node.value for node in nodes if isinstance(node.value, str) and "\n" not in node.value]
    return [text for text in texts if text in named() or any(key in text for key in keys)]


def test_no_module_outside_decides_by_a_providers_name() -> None:
    own = ("actors/providers/", "actors/simulator/", "actors/files/object_store.py")  # `azure` is a store there
    paths = [path for path in sources(("actors", "cortex", "policies")) if not str(path.relative_to(ROOT)).startswith(own)]
    found = {str(path.relative_to(ROOT)): _named_in(path.read_text()) for path in paths}
    assert {path: texts for path, texts in found.items() if texts} == {}
    assert _named_in('if provider == "bedrock": key = environ["ANTHROPIC_API_KEY"]') == ["bedrock", "ANTHROPIC_API_KEY"]


def test_a_route_leads_back_to_its_row() -> None:
    for endpoint, name in {
        "https://api.anthropic.com": "anthropic", "http://bedrock:8": "anthropic", "bedrock://eu-west-1": "bedrock",
        "vertex://p/global+http://gateway": "vertex", "sim:d9ccea691a3d": "sim", "local": "local", "given": "anthropic",
    }.items():  # fmt: skip
        assert of_endpoint(endpoint) is row_of(name), endpoint


def test_metrics_and_spans_name_a_provider_as_they_did() -> None:
    assert {endpoint: telemetry_name(endpoint) for endpoint in (
        "https://api.anthropic.com", "https://gateway", "bedrock://eu-west-1", "bedrock://eu-west-1+http://gateway:8",
        "vertex://p/global", "foundry://r", "https://bedrock-runtime.eu-west-1.amazonaws.com",
        "https://r.services.ai.azure.com/anthropic", "sim:d9ccea691a3d", "local", "given",
    )} == {
        "https://api.anthropic.com": "anthropic", "https://gateway": "anthropic", "bedrock://eu-west-1": "aws.bedrock",
        "bedrock://eu-west-1+http://gateway:8": "aws.bedrock", "vertex://p/global": "gcp.vertex_ai",
        "foundry://r": "azure.ai.inference", "https://bedrock-runtime.eu-west-1.amazonaws.com": "aws.bedrock",
        "https://r.services.ai.azure.com/anthropic": "azure.ai.inference", "sim:d9ccea691a3d": "cortex.sim",
        "local": "cortex.local", "given": "cortex.given",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("credential", "fingerprint"),
    [
        (Credential(api_key="sk-made-up-0123456789"), "fd3d6bbdf1b8"),
        (Credential(auth_token="token", custom_headers=(("x-team", "blue"),)), "e977578adc39"),
        (Credential(platform=CloudPlatform(name="bedrock", region="eu-west-1", identity="AKIAMADEUP")), "8338eadcf616"),
        (Credential(platform=CloudPlatform(name="bedrock", region="eu-west-1", profile="work")), "1c4fa2f5aeb7"),
        (Credential(api_key="made-up-bearer", platform=CloudPlatform(name="bedrock", region="x")), "37486ade4e08"),
        (Credential(platform=CloudPlatform(name="vertex", region="global", project="p")), "b3396f55db65"),
        (Credential(api_key="made-up-foundry", platform=CloudPlatform(name="foundry", resource="r")), "9b753bf77e7d"),
    ],
)
def test_fingerprints_in_kept_journals_are_found_again(credential: Credential, fingerprint: str) -> None:
    """Values of release 0.1.0: routes of journals and keys of remembered replies hold them."""
    assert credential.fingerprint == fingerprint


@pytest.mark.parametrize(
    ("spec", "endpoint", "fingerprint", "pool"),
    [
        (ModelSpec(model="claude-haiku-4-5"), "https://api.anthropic.com", "fd3d6bbdf1b8", "haiku"),
        (ModelSpec(model="claude-haiku-4-5", base_url="http://GW:80/x/"), "http://gw/x", "fd3d6bbdf1b8", "haiku"),
        (ModelSpec(model="claude-haiku-4-5", **BEDROCK), "bedrock://eu-west-1", "8338eadcf616", "claude-haiku-4-5"),
        (ModelSpec(model="m", base_url="http://gw:8/", **BEDROCK), "bedrock://eu-west-1+http://gw:8", "8338eadcf616", "m"),
        (ModelSpec(model="m", provider="vertex", region="global", project="p"), "vertex://p/global", "b3396f55db65", "m"),
        (ModelSpec(model="claude-3-haiku", provider="foundry", resource="r"), "foundry://r", "9b753bf77e7d", "haiku"),
        (ModelSpec(model="sim"), "sim:d9ccea691a3d", "", "sim"),
        (ModelSpec(model="sim", simulated=SimulatorSettings(seed=3)), "sim:03e940d3165c", "", "sim"),
    ],
)
def test_routes_and_pools_in_kept_journals_are_found_again(spec, endpoint, fingerprint, pool) -> None:
    """Values of release 0.1.0."""
    found = destination(spec, Limits(), KEYS)
    assert (found.route.endpoint, found.route.credential) == (endpoint, fingerprint)
    assert found.connection.pool_name == pool_of(endpoint, fingerprint, found.route.model) == f"{endpoint}|{fingerprint}|{pool}"


def test_what_a_job_keeps_of_its_model_is_as_it_was_unless_a_provider_has_words_of_its_own() -> None:
    kept = remember(ModelSpec(model="m", **BEDROCK))
    assert kept == (
        '{"model":"m","base_url":"","price":"","simulated":null,"prompt_tokens_max":null,"via":"messages",'
        '"provider":"bedrock","region":"eu-west-1","project":"","resource":"","price_as":"","api_key_file":"",'
        '"fallbacks":[],"roles":{}}'
    )
    further = ModelSpec(model="m").placed({"region": "r", "shelf": "3"})
    assert msgspec.json.decode(remember(further), type=ModelSpec) == further
    assert (further.region, further.place) == ("r", {"shelf": "3"})


def test_the_local_model_takes_twice_as_many_calls_as_it_has_slots() -> None:
    assert row_of("local").concurrency_max == 2 * LOCAL_SLOTS


def test_the_default_row_needs_no_name() -> None:
    assert row_of("") is row_of(DEFAULT)


@pytest.mark.parametrize(
    ("provider", "endpoint", "model", "structured"),
    [
        ("anthropic", "https://api.anthropic.com", "claude-haiku-4-5", True),
        ("", "https://api.anthropic.com", "claude-sonnet-4-5-20250929", True),
        ("", "https://api.anthropic.com", "claude-opus-4-10", True),
        ("", "https://api.anthropic.com", "claude-fable-5", True),
        ("", "https://api.anthropic.com", "claude-sonnet-4-20250514", False),
        ("", "https://api.anthropic.com", "claude-opus-4-1-20250805", False),
        ("", "https://api.anthropic.com", "claude-3-5-haiku-20241022", False),
        ("", "https://llm.example.com", "claude-haiku-4-5", False),
        ("", "https://notanthropic.com", "claude-haiku-4-5", False),
        ("bedrock", "bedrock://eu-west-1", "eu.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        ("bedrock", "bedrock://eu-west-1+https://gateway.example.com", "eu.anthropic.claude-haiku-4-5-20251001-v1:0", False),
        ("vertex", "vertex://global/P", "claude-opus-4-6", False),
        ("foundry", "foundry://R", "claude-opus-4-6", False),
        ("local", "local", "smollm2-135m-instruct", True),
        ("sim", "sim:d9ccea691a3d", "sim", True),
    ],
)
def test_structured_outputs_are_certain_for_some_models_at_their_providers_own_hosts(
    provider: str, endpoint: str, model: str, structured: bool
) -> None:
    assert has_structured(provider, endpoint, model) == structured
