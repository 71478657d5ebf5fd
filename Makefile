# Every target that needs the environment makes it first; `make setup` is done in a moment when nothing is missing.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-full lint format types ui up down bench clean

PY := .venv/bin/python
CONFIG ?= configs/quickstart.toml
BENCH ?= $(wildcard benchmarks/*.py)

# One thread a process: the tests start several, and two threads on one core are slower than one.
TEST_ENV := OMP_NUM_THREADS=1 PREFECT_SERVER_ANALYTICS_ENABLED=false DO_NOT_TRACK=1 \
	MLFLOW_DISABLE_TELEMETRY=true
PYTEST := $(TEST_ENV) $(PY) -m pytest

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## Create .venv, install what is needed, fetch the model (done in a moment when nothing is missing)
	@python=$$(PYTHON="$(PYTHON)" sh scripts/find_python.sh) && exec "$$python" scripts/setup.py

demo: setup ## Run the whole chain on a real model (CONFIG=configs/quickstart.toml)
	@$(PY) -m flows run $(CONFIG)

test: setup ## Run all tests that need no GPU and no network, except the slow ones
	@$(PYTEST) -m "not slow and not gpu and not network"

test-fast: setup ## Run the unit and packaging tests (at most 90 s)
	@$(PYTEST) -m "not slow and not gpu and not network" tests/unit tests/packaging

test-full: setup ## Run all tests that need no GPU, slow ones and those that need a package index included
	@$(PYTEST) -m "not gpu"

lint: setup ## Check style and formatting with ruff
	@$(PY) -m ruff check . && $(PY) -m ruff format --check .

format: setup ## Repair style and formatting with ruff
	@$(PY) -m ruff check --fix . ; $(PY) -m ruff format .

types: setup ## Check the types of vf_pipeline, strictly
	@$(PY) -m mypy

ui: setup ## Open the pages of past runs: Prefect and MLflow
	@$(PY) -m flows ui

up: setup ## Start server, work pools and workers, to stay
	@$(PY) -m flows up

down: ## End what `make up` started
	@test ! -x $(PY) || $(PY) -m flows down

bench: setup ## Run the benchmarks
	@set -e; for file in $(BENCH); do OMP_NUM_THREADS=1 $(PY) "$$file"; done

clean: ## Remove caches and build outputs (keeps .venv, runs and models)
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
