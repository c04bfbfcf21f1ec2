# Everything runs from .venv, which `make setup` builds with nothing but Python 3.11+ and this file.
PYTHON ?= python3
VENV := .venv
# `python -m tool` rather than the tool's script: scripts carry the absolute path of the place they were installed in.
PY := $(VENV)/bin/python
SETUP := $(VENV)/.setup-done
BENCH := $(VENV)/.bench-done
PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check
# Extra arguments for the program that a target runs: make bench ARGS="--quick"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup lint format fast chromium test demo demo-sentinel demo-django demo-images matrix-django bench soak mutants clean

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(SETUP) ## Make .venv with what the tests need (PYTHON=python3.12 picks another Python)

$(SETUP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Headgate needs Python 3.11 or newer, and '$(PYTHON)' is not one that runs: name another, as in 'make PYTHON=python3.11 setup'." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "This Python cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# Dependency groups need pip 25.1.
	$(PIP_INSTALL) --upgrade 'pip>=25.1'
	$(PIP_INSTALL) --editable '.[all]' --group dev
	@touch $@

$(BENCH): $(SETUP)
	$(PIP_INSTALL) --group bench
	@touch $@

lint: $(SETUP) ## Check style, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(SETUP) ## Put the code into its format, with the fixes that are safe
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

# What needs no server: the kernel on the embedded stores, configuration, the suites that are shipped, the rules of imports.
PURE := tests/kernel tests/config tests/testing tests/test_imports.py tests/test_errors.py tests/test_duration.py

fast: $(SETUP) ## Lint, types and the pure kernel, for the inner loop (under 30 seconds)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	HYPOTHESIS_PROFILE=fast $(PY) -m pytest -q -n 2 -k 'not redis and not dynamodb' $(PURE) $(ARGS)

# The dashboard is tested in a real Chromium. Without one its tests say how to get it, and fail where CI is set.
CHROMIUM := apt-get install -y -qq --no-install-recommends chromium fonts-liberation
chromium:
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then :; \
	elif [ -n "$(NO_APT)" ]; then \
		echo "There is no Chromium here and NO_APT is set: the dashboard is not looked at." >&2; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "There is no Chromium here, and the tests of the dashboard look at it in one. You are root, so it is installed now:" >&2; \
		echo "    apt-get update && $(CHROMIUM)" >&2; \
		echo "NO_APT=1 skips this, and with it those tests." >&2; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(CHROMIUM) >/dev/null || \
			echo "It could not be installed: the dashboard is not looked at." >&2; \
	else \
		echo "There is no Chromium here, so the dashboard is not looked at; on Debian and Ubuntu: apt-get install chromium" >&2; \
	fi >/dev/null

test: lint chromium ## Lint, then all tests but the soak (under 15 minutes on two cores; NO_APT=1 installs no browser)
	@# In a folder of its own with a short name: sockets have paths of at most 107 characters.
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
		$(PY) -m pytest -n 4 --dist loadfile --durations=20 --basetemp="$$folder/t" $(ARGS)

demo: $(SETUP) ## See the promise: the same work without Headgate and with it (under a minute)
	$(PY) -m headgate demo $(ARGS)

demo-sentinel: $(SETUP) ## See a fleet against a local Sentinel Hub: a guard that hands out delays, beside others (30 seconds)
	$(PY) -m benchmarks.sentinel_hub --demo $(ARGS)

demo-django: $(SETUP) ## See tenants in Django: two server processes, 60 requests of three organizations at once (under a minute)
	$(PY) examples/django_api/demo.py $(ARGS)

demo-images: $(SETUP) ## See adaptive concurrency: 60 images while a simulated service goes from 20 at once to 6 to 14 (under a minute)
	$(PY) -m headgate images examples/nanobanana/prompts.json -o build/images --simulate --rule probing --rpm 600 --call-time 2s --capacity 20,6@4s,14@12s $(ARGS)

matrix-django: $(SETUP) ## Run the tests of the Django app on Django 4.2 and 5.2, and on 6 where a newer Python is installed
	$(PY) tests/contrib/django/matrix.py $(ARGS)

bench: $(BENCH) ## Measure against floors and peers (ARGS="--quick", ARGS="--write docs/benchmarks.md")
	$(PY) -m benchmarks $(ARGS)

soak: $(SETUP) ## Run the tests that take minutes to hours
	$(PY) -m pytest -m soak --timeout=0 $(ARGS)

mutants: $(SETUP) ## Plant bugs in the core, one at a time, and see the suite find each
	$(PY) -P tests/mutants.py $(ARGS)

clean: ## Remove .venv and everything built
	rm -rf $(VENV) .venv-matrix build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
