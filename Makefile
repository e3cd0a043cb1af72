# Needs Python 3.11 or newer, pip, make and a network to PyPI; no compiler, no key. Everything is installed into .venv.
#   make demo      the main job on real input, with the bundled small model
#   make test      the tests, in three processes (ARGS="-k name" for some, SPLIT= for one process); nothing it started
#                  is left behind
#   make soak SEEDS=100000   so many simulated worlds, on all cores, with seeds an hour; a failing one prints the command
#                  that replays it, and shrinks to the shortest script
#   make e2e       with real tools: Prometheus, Chromium, a terminal (tmux), hosts of their own (ip), LiteLLM's proxy. As
#                  root on Debian it installs what is missing; elsewhere a test whose tool is not on the PATH is skipped, and
#                  the last lines say which. And what is too long for make test
#   make chaos     kill -9 of everything on a Ray of three nodes (CHAOS="--rows 3000" for a short form), and a few attacks
#   make adversary all attacks, each with its verdict: kills, hostile servers, disks, flipped bits, clocks, bills
#                  (ARGS="--only servers"); an hour
#   make release   what a release runs besides .ci/run: the longest tests, Phoenix, 10,000 seeds, the long chaos
#   make bench-quick   whether the same calls take more work than they did: counted, 30 s; make bench: measured, minutes
#   make docs      the pages and the API reference as a site, build/docs/site/index.html; it fails on a broken link
#   make picture   the picture of the README, drawn from a run in a terminal; 25 s
#   make dist      wheel and sdist in dist/; make chart: the Helm chart, made from k8s/; make sbom: what the image holds
#                  (CycloneDX); make audit: its known vulnerabilities, where PyPI's vulnerability service is reached
#   make release-version VERSION=1.2.3   the version in all files, the changelog's heading, a commit and a tag
#   make lint types clean
# PYTHON=/path/to/python chooses the interpreter; without it the newest suitable one on the PATH is taken.

VENV ?= .venv
PYTHON ?=
ARGS ?=
# More processes than cores: many a test waits.
SPLIT ?= -n 3
SLOWEST := --durations=20 --durations-min=5
SEEDS ?= 10000
BENCH ?= http start memory
DIST ?= dist
CHAOS ?=
PY := $(VENV)/bin/python
# Where it is set, each process that tests and benchmarks start would compile the whole project once more.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := PYTHON="$(PYTHON)" .ci/install $(VENV)

.PHONY: demo test e2e release soak lint types bench bench-quick chaos adversary docs picture clean help
.PHONY: dist sbom chart audit release-version
.DEFAULT_GOAL := help

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.installed-local
	@$(PY) -m actors.cli.demo

test: $(VENV)/.installed-test-local
	@$(PY) .ci/nothing_left.py $(PY) -m pytest $(SPLIT) $(SLOWEST) -m "not long and not release" $(ARGS)

# One process for the tools, which have the machine to themselves, so that what a page or a query took is their own time;
# then one for a Ray of several nodes beside one for the rest.
e2e: $(VENV)/.installed-e2e-local
	@.ci/debian ip=iproute2 chromium=chromium prometheus=prometheus promtool=prometheus amtool=prometheus-alertmanager tmux=tmux
	@.ci/apart $(VENV)-litellm $(PY) "litellm[proxy]>=1.108.7"
	@LITELLM=$(VENV)-litellm $(PY) .ci/nothing_left.py $(PY) -m pytest tests/e2e $(SLOWEST) -m "not release" -o faulthandler_timeout=1800 $(ARGS)
	@$(PY) .ci/nothing_left.py $(PY) -m pytest -n 2 tests/cluster tests/cli tests/edge tests/simulation $(SLOWEST) -m "long and not release" -o faulthandler_timeout=1800 $(ARGS)

release: $(VENV)/.installed-e2e-local
	@.ci/debian ip=iproute2 chromium=chromium buildah=buildah debootstrap=debootstrap
	@.ci/apart $(VENV)-phoenix $(PY) "arize-phoenix>=20.26.1"
	@PHOENIX=$(VENV)-phoenix $(PY) .ci/nothing_left.py $(PY) -m pytest tests tests/e2e $(SLOWEST) -m release -o faulthandler_timeout=1800 $(ARGS)
	@$(PY) -m tests.simulation --soak $(SEEDS)
	@$(PY) .ci/nothing_left.py $(PY) -m tests.chaos

lint: $(VENV)/.installed-dev
	@$(PY) -m ruff check .
	@PYTHONPATH=. $(VENV)/bin/lint-imports --no-logo --no-cache

types: $(VENV)/.installed-dev
	@$(PY) -m mypy

bench: $(VENV)/.installed-test-local
	@for name in $(BENCH); do $(PY) -m benchmarks.$$name --json || exit 1; done

bench-quick: $(VENV)/.installed-test-local
	@$(PY) -m benchmarks.quick $(ARGS)

soak: $(VENV)/.installed-test-local
	@$(PY) -m tests.simulation --soak $(SEEDS)

chaos: $(VENV)/.installed-test-local
	@$(PY) .ci/nothing_left.py $(PY) -m tests.chaos $(CHAOS)
	@$(PY) .ci/nothing_left.py $(PY) -m tests.adversary --short

adversary: $(VENV)/.installed-test-local
	@$(PY) .ci/nothing_left.py $(PY) -m tests.adversary $(ARGS)

picture: $(VENV)/.installed-test-local
	@$(PY) .ci/terminal_picture.py

docs: $(VENV)/.installed-docs
	@PYTHONPATH=. $(PY) .ci/docs_site.py

# The wheel is built from the sdist, so that what the sdist lacks is seen; what builds both is pinned by hash.
dist: $(VENV)/.installed-release
	@rm -rf $(DIST)
	@$(PY) -m uv build -q --build-constraints k8s/image/build.lock --require-hashes --out-dir $(DIST) .
	@ls $(DIST)

sbom: $(VENV)/.installed-release
	@mkdir -p $(DIST)
	@$(PY) -W ignore::UserWarning -m cyclonedx_py requirements k8s/image/requirements.lock --pyproject pyproject.toml --mc-type application \
		--output-reproducible --validate -o $(DIST)/cortex.cdx.json
	@echo $(DIST)/cortex.cdx.json

chart: $(VENV)/.installed-release
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m k8s.chart $(DIST)

audit: $(VENV)/.installed-release
	@$(PY) .ci/audit.py $(ARGS)

release-version: $(VENV)/.installed-release
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" .ci/release_version "$(VERSION)"

clean:
	rm -rf $(VENV) $(VENV)-litellm $(VENV)-phoenix build dist .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find actors benchmarks cortex k8s policies tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# A stamp a set of extras: installed again only when pyproject.toml is newer.
$(VENV)/.installed-local: pyproject.toml
	@$(INSTALL) local

$(VENV)/.installed-test-local: pyproject.toml
	@$(INSTALL) test local

$(VENV)/.installed-e2e-local: pyproject.toml
	@$(INSTALL) e2e local

$(VENV)/.installed-dev: pyproject.toml
	@$(INSTALL) dev

$(VENV)/.installed-release: pyproject.toml
	@$(INSTALL) release

$(VENV)/.installed-docs: pyproject.toml
	@$(INSTALL) docs
