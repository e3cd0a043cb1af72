"""What the pages in docs/ show, exists: commands and options, links, variables, and files that are well formed."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from actors.observing.settings import Settings
from tests.structure import ROOT

PAGES = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.DOTALL)


def _commands() -> list[tuple[str, str]]:
    """Each `cortex …` of the text and of the blocks: page and words, with what the words stand for put in."""
    found = []
    for name, page in PAGES.items():
        spans = re.findall(r"`(cortex [^`]+)`", page)
        lines = [line for block in _blocks(name, "sh") for line in block.splitlines() if re.search(r"\bcortex [a-z]", line)]
        for text in [*spans, *lines]:
            words = re.search(r"(?:^|\s)(cortex [a-z].*)", text.partition("#")[0])
            if words:
                found.append((name, words[1].partition(" 2>")[0].strip()))
    return sorted(set(found))


@functools.cache
def _help(command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "actors.cli", command, "--help"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={"COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, f"there is no `cortex {command}`"
    return done.stdout


def test_every_command_and_option_exists():
    commands = _commands()
    assert {"status", "resume", "drain", "limit", "set", "cancel"} <= {words.split()[1] for _, words in commands}
    for page, words in commands:
        _, command, *rest = shlex.split(words)
        assert _help(command)
        for option in [word for word in rest if word.startswith("--")]:
            assert option in _help(command), (page, words)


def test_options_named_alone_exist():
    shown = _help("batch")
    for name, page in PAGES.items():
        if name == "reference.md":
            continue  # written from the commands themselves: tests/cli/test_job_file.py holds it to them
        for option in sorted(set(re.findall(r"`(--[a-z-]+)[` ]", page)) - {"--state"} - OF_OTHERS):
            assert option in shown, (name, option)


# Of Prometheus, not of ours.
OF_OTHERS = {"--web", "--enable-feature"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[page]):
        file, _, anchor = target.partition("#")
        text = PAGES[file or page]
        anchors = {_anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
        assert not anchor or anchor in anchors, target


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_alert_of_the_page_is_in_the_runbook_and_rules():
    named = re.findall(r"^\| \[(Cortex\w+)\]\(runbook", PAGES["observing.md"], re.MULTILINE)
    assert named == re.findall(r"^## (Cortex\w+)$", PAGES["runbook.md"], re.MULTILINE)
    rules = yaml.safe_load((ROOT / "k8s/prometheus/cortex-rules.yaml").read_text())["groups"][0]["rules"]
    severity = {rule["alert"]: rule["labels"]["severity"] for rule in rules if "alert" in rule}
    told = re.findall(r"^\| \[(Cortex\w+)\]\(\S+\) \| (\w+) \|", PAGES["observing.md"], re.MULTILINE)
    assert dict(told) == severity


def test_the_variables_are_understood():
    """Each block of `export` lines, as the program reads it: no complaint, and what it says takes effect."""
    blocks = [block for block in _blocks("observing.md", "sh") if "export OTEL_" in block]
    assert len(blocks) >= 6
    places = []
    for block in blocks:
        environ = dict(re.findall(r'^export (\w+)="?([^"\n]*)"?$', block, re.MULTILINE))
        settings = Settings.from_environ(environ)
        assert settings.complaints == (), block
        assert settings != Settings.from_environ({}), block
        if "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" in environ:
            assert settings.traces.exporters == ("otlp",)
            assert settings.metrics.exporters == settings.logs.exporters == (), "only traces go there"
            assert len(settings.traces.headers) == environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "").count("=")
            places.append(settings.traces.endpoint)
    assert {place.rpartition("/v1/")[2] for place in places} == {"traces"}
    assert len(places) >= 5
    header = Settings.from_environ({"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Basic%20BASE64"}).traces.headers
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
        changed = Settings.from_environ({**base, name: values.get(name, "x=http://a.test:1")})
        assert changed != Settings.from_environ(base), f"{name} changes nothing"


def test_yaml_is_well_formed():
    blocks = _blocks("observing.md", "yaml")
    assert len(blocks) == 3
    kinds = [yaml.safe_load(block) for block in blocks]
    assert [sorted(kind)[0] for kind in kinds] == ["rule_files", "scrape_configs", "apiVersion"]
    for name in re.findall(r"k8s/[\w./-]+\.(?:json|yaml)\b", PAGES["observing.md"]):
        assert (ROOT / name).exists(), name
