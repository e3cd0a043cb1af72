"""What the pages say in passing, exists: commands and options, alerts, variables, and files that are well formed.

Their blocks are run, and their links followed, by test_pages.py.
"""

from __future__ import annotations

import functools
import re
import shlex
import tomllib
from pathlib import Path

import yaml

from actors.cli import reference
from actors.cli.options import help_layout
from actors.cli.options.options import ABOUT, keys
from actors.observability.base.settings import TelemetrySettings
from tests.cli.cli_runner import requests
from tests.support.doc_pages import blocks, pages
from tests.support.repository_rules import ROOT

PAGES = {name.removeprefix("docs/"): text for name, text in pages().items() if name.startswith("docs/")}
FIRST = (ROOT / "README.md").read_text()


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\b[^\n]*\n(.*?)```", PAGES[page], re.DOTALL | re.MULTILINE)


def _commands() -> list[tuple[str, str]]:
    """Each `cortex …` of the text, and of blocks that nothing runs: page and words."""
    found = []
    for name, page in {**PAGES, "../README.md": FIRST}.items():
        lines = [
            line
            for block in blocks(name, page)
            if block.left_out
            for line in block.text.splitlines()
            if "cortex " in line
        ]
        spans = re.findall(r"`(cortex [a-z][^`]*)`", page)
        for text in [*spans, *lines]:
            if words := re.search(r"(?:^|\s)(cortex [a-z].*)", text.partition(" #")[0]):
                found.append((name, words[1].rstrip("\\")))
    return sorted(set(found))


@functools.cache
def _options() -> dict[str, set[str]]:
    """Each command, and what it takes."""
    return {
        path.removeprefix("cortex "): {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        for path, command in reference.walked()
    }


def test_every_command_and_option_exists():
    commands = _commands()
    assert {"status", "resume", "drain", "limit", "set", "cancel"} <= {words.split()[1] for _, words in commands}
    for page, words in commands:
        _, command, *rest = shlex.split(words)
        grouped = command in ("program", "k8s")
        if grouped and rest and re.fullmatch("[a-z-]+", rest[0]):
            command = f"{command} {rest[0]}"
        if grouped and not rest:
            continue
        assert command in _options(), (page, words)
        for option in [word for word in rest if re.fullmatch("--[a-z-]+", word)]:
            assert option in _options()[command] | {"--help"}, (page, words)


def test_options_named_alone_exist():
    known = set().union(*_options().values()) | OF_OTHERS | {"--help"}
    for name, page in {**PAGES, "../README.md": FIRST}.items():
        for option in sorted(set(re.findall(r"`(--[a-z-]+)[` ]", page))):
            assert option in known, (name, option)


def test_help_has_each_command_in_a_group_and_examples_of_what_exists():
    """Also of commands and options: a name that moved on leaves its group."""
    commands = {path.partition(" ")[0] for path in _options()}
    assert commands <= {name for names in help_layout.COMMANDS.values() for name in names.split()}
    shared = {name for names in help_layout.OPTIONS.values() for name in names.split()}
    assert set(keys()) - set(ABOUT) <= shared
    for command, examples in help_layout.EXAMPLES.items():
        for example in examples:
            _, first, *rest = shlex.split(example)
            assert first == command
            flags = {word for word in rest if re.fullmatch("--?[a-z-]+", word)}
            assert flags <= _options()[command], example


# Of Prometheus, model servers and routers, not of ours.
OF_OTHERS = {
    "--web", "--enable-feature", "--enable-metrics", "--logprobs-mode", "--max-logprobs", "--metrics", "--static-backends",
    "--service-discovery",
}  # fmt: skip


def test_the_options_about_limits_are_taken_as_they_stand(cortex) -> None:
    requests(Path("in.jsonl"), 3)
    table = PAGES["limits.md"].partition("\n## ")[0]
    facts = dict(re.findall(r"`(--[a-z-]+)(?: ([^ `]+))?`", table))
    for name in ("--cluster", "--fallback", "--max-cost", "--price-as", "--via"):  # asked of other jobs
        facts.pop(name, None)
    assert len(facts) >= 12, facts
    numbers = {"--concurrency": "10", "--rpm": "6000", "--itpm": "1e6", "--otpm": "1e6", "--priority": "2"}
    words = [word for name, value in facts.items() for word in (name, value or numbers.get(name, "")) if word]
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "JOB", "--max-cost", 1)
    prices = ("--price", "input=3,output=15", "--fallback", "sim,seed=2,input=3,output=15")
    done = cortex(*command, *prices, *words)
    assert done.code == 0, done.err
    for shown in re.findall(r"`cortex (set [^`]*|drain JOB|resume JOB|limit [^`]*)`", table):
        words = shown.replace("sonnet", "sim").split()
        assert "Traceback" not in (done := cortex(*words)).err
        assert "--help" not in done.err, done.err


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {
        *project["dependencies"],
        *(each for name, some in extras.items() if name not in OF_TESTS for each in some),
    }
    names = {re.split(r"[\[><=;!]", each)[0].strip() for each in wanted}
    assert {name for name in names if name not in PAGES["dependencies.md"]} == set()


OF_TESTS = {"test", "e2e", "dev", "claims"}


def test_every_alert_of_the_page_is_in_the_runbook_and_rules():
    named = re.findall(r"^\| \[(Cortex\w+)\]\(runbook", PAGES["observing.md"], re.MULTILINE)
    assert named == re.findall(r"^## (Cortex\w+)$", PAGES["runbook.md"], re.MULTILINE)
    rules = yaml.safe_load((ROOT / "k8s/prometheus/cortex-rules.yaml").read_text())["groups"][0]["rules"]
    severity: dict[str, str] = {}
    for rule in rules:
        if "alert" in rule:
            severity[rule["alert"]] = " or ".join(filter(None, (severity.get(rule["alert"]), rule["labels"]["severity"])))
    entries = re.findall(r"^\| \[(Cortex\w+)\]\(\S+\) \| ([\w ]+) \|", PAGES["observing.md"], re.MULTILINE)
    assert dict(entries) == severity


def test_the_variables_are_understood():
    """Each block of `export` lines, as the program reads it: no complaint, and what it says takes effect."""
    blocks = [block for block in _blocks("observing.md", "sh") if "export OTEL_" in block]
    assert len(blocks) >= 6
    places = []
    for block in blocks:
        environ = dict(re.findall(r'^export (\w+)="?([^"\n]*)"?$', block, re.MULTILINE))
        settings = TelemetrySettings.from_environ(environ)
        assert settings.problems == (), block
        assert settings != TelemetrySettings.from_environ({}), block
        if "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" in environ:
            assert settings.traces.exporters == ("otlp",)
            assert settings.metrics.exporters == settings.logs.exporters == (), "only traces go there"
            assert len(settings.traces.headers) == environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "").count("=")
            places.append(settings.traces.endpoint)
    assert {place.rpartition("/v1/")[2] for place in places} == {"traces"}
    assert len(places) >= 5
    header = TelemetrySettings.from_environ(
        {"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Basic%20BASE64"}
    ).traces.headers
    assert header == (("authorization", "Basic BASE64"),)


def test_the_table_names_only_variables_that_are_read():
    table = re.findall(r"^\| (`OTEL_[^|]+) \|", PAGES["observing.md"], re.MULTILINE)
    names = re.findall(r"OTEL_\w+", " ".join(table))
    assert len(names) >= 12
    values = {"OTEL_TRACES_SAMPLER": "always_on", "OTEL_TRACES_SAMPLER_ARG": "0.5", "OTEL_SDK_DISABLED": "true",
              "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "otlp",
              "OTEL_LOGS_EXPORTER": "otlp", "OTEL_RESOURCE_ATTRIBUTES": "a=b", "OTEL_BSP_SCHEDULE_DELAY": "250",
              "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"}  # fmt: skip
    for name in names:
        base = {"OTEL_TRACES_SAMPLER": "traceidratio"} if name.endswith("_ARG") else {}
        base |= {"OTEL_TRACES_EXPORTER": "otlp"} if name.endswith("HEADERS") else {}
        changed = TelemetrySettings.from_environ({**base, name: values.get(name, "x=http://a.test:1")})
        assert changed != TelemetrySettings.from_environ(base), f"{name} changes nothing"


def test_yaml_is_well_formed():
    blocks = _blocks("observing.md", "yaml")
    assert len(blocks) == 3
    kinds = [yaml.safe_load(block) for block in blocks]
    assert [sorted(kind)[0] for kind in kinds] == ["rule_files", "scrape_configs", "apiVersion"]
    for name in re.findall(r"k8s/[\w./-]+\.(?:json|yaml)\b", PAGES["observing.md"]):
        assert (ROOT / name).exists(), name


def test_an_alert_about_a_job_holds_back_alerts_about_that_job_alone():
    """A blocked account says nothing about the breakers of other providers, nodes and tools."""
    rules = yaml.safe_load((ROOT / "k8s" / "prometheus" / "cortex-rules.yaml").read_text())["groups"][0]["rules"]
    of_job = {each["alert"] for each in rules if "$labels.cortex_job_id" in each.get("annotations", {}).get("summary", "")}
    inhibitions = yaml.safe_load((ROOT / "k8s" / "prometheus" / "cortex-inhibitions.yaml").read_text())["inhibit_rules"]
    assert len(inhibitions) == 8 and len(of_job) > 5
    for each in inhibitions:
        sources, targets = (set(re.findall(r"Cortex\w+", str(each[side]))) for side in ("source_matchers", "target_matchers"))
        if sources & of_job:
            assert targets <= of_job and "cortex_job_id" in each["equal"], each
