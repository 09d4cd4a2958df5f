# `make help` lists the targets. Nothing but Python 3.11+ with pip is needed beforehand; each target makes what it lacks.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
# Most tests wait for a broker, so more run at once than there are cores; a file's tests stay together, with their servers.
WORKERS ?= 4
PARALLEL = -n $(WORKERS) --dist loadfile
VENV := .venv
AMAZON := .venv-amazon
MINISTACK := .venv-ministack
BIN := $(VENV)/bin
REPORTS := .local/reports
TYPED := airflow_provider_sharedstream services demo benchmarks tests

# What Airflow writes at import stays inside the checkout.
export AIRFLOW_HOME ?= $(CURDIR)/.local/airflow
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# $(call environment,folder,constraints,arguments of pip install,size): makes a virtual environment, or brings one up to date.
define environment
	@started=$$SECONDS; \
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else f"development needs Python 3.11 or newer, this is {sys.version}: make PYTHON=...")'; \
	echo "==> $(1): installing what $(2) pins ($(4) the first time)"; \
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1); \
	$(1)/bin/python -m pip install --quiet --upgrade --constraint constraints.txt pip; \
	$(1)/bin/python -m pip install --quiet --constraint $(2) $(3); \
	echo "==> $(1): ready after $$((SECONDS - started)) s"; \
	touch $@
endef

# $(call lock,constraints,arguments of pip install): resolves anew, in an environment of its own, and writes names and versions.
define lock
	@rm -rf .local/lock && $(PYTHON) -m venv .local/lock
	@echo "==> $(1): resolving"
	@.local/lock/bin/python -m pip install --quiet --upgrade pip
	@.local/lock/bin/python -m pip install --quiet $(2)
	@{ echo '# What this project is developed and tested with. Written by `make lock`; not edited by hand.'; \
	   .local/lock/bin/python -m pip freeze --all --exclude-editable --exclude setuptools; } > $(1)
	@rm -rf .local/lock
endef

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.made $(MINISTACK)/.made ## real messages start real Dags, and a live table shows it; KEEP=1 keeps Airflow up
	@KEEP=$(KEEP) $(BIN)/python -m demo

.PHONY: brokers
brokers: $(VENV)/.made $(MINISTACK)/.made ## local brokers for Dags of your own until Ctrl-C; ARGS='kafka pubsub' for some of them
	@$(BIN)/python -m services $(ARGS)

.PHONY: test test-main test-amazon
test: ## every test; ARGS='-k lanes' goes to pytest
	@failed=0; \
	$(MAKE) --no-print-directory test-main || failed=$$?; \
	$(MAKE) --no-print-directory test-amazon || failed=$$?; \
	exit $$failed

test-main: $(VENV)/.made $(VENV)/.servicebus-emulator $(MINISTACK)/.made ## the tests in .venv
	@mkdir -p $(REPORTS)
	@echo "==> tests in $(VENV)"
	@$(BIN)/python -m pytest $(PARALLEL) -o cache_dir=.local/cache/main --junit-xml=$(REPORTS)/main.xml $(ARGS)

test-amazon: $(AMAZON)/.made $(MINISTACK)/.made ## tests/sqs once more, beside the official Amazon provider
	@mkdir -p $(REPORTS)
	@echo "==> tests/sqs in $(AMAZON)"
	@$(AMAZON)/bin/python -m pytest tests/sqs -m "not slow" $(PARALLEL) -o cache_dir=.local/cache/amazon --junit-xml=$(REPORTS)/amazon.xml $(ARGS)

.PHONY: long
long: $(VENV)/.made $(MINISTACK)/.made ## kills and deploys for as long as it takes, nothing lost; three quarters of an hour
	@mkdir -p $(REPORTS)
	@echo "==> the long tests"
	@$(BIN)/python -m pytest tests/cohort tests/rest -m long --junit-xml=$(REPORTS)/long.xml $(ARGS)

.PHONY: lint format types docs bench
lint: $(VENV)/.made ## ruff and the import contracts
	@echo "==> ruff"
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@echo "==> import contracts"
	@$(BIN)/lint-imports

format: $(VENV)/.made ## let ruff format, sort imports and mend what it can
	@$(BIN)/ruff check --fix --exit-zero
	@$(BIN)/ruff format

types: $(VENV)/.made $(VENV)/.servicebus-emulator ## mypy --strict
	@echo "==> mypy"
	@$(BIN)/mypy $(TYPED)

docs: $(VENV)/.made ## the documentation, in docs/_build/html; a warning is an error
	@echo "==> sphinx"
	@$(BIN)/sphinx-build -W --keep-going -E -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(VENV)/.made $(MINISTACK)/.made ## the measurements behind docs/operations.md
	@$(BIN)/python -m benchmarks $(ARGS)

.PHONY: build
build: $(VENV)/.made ## sdist and wheel, in dist/
	@$(BIN)/python -m build --outdir dist

.PHONY: env env-amazon env-ministack lock
env: $(VENV)/.made ## .venv: the package, editable, with every extra but amazon and kafka-msk, and all tools
env-amazon: $(AMAZON)/.made ## .venv-amazon: the package, editable, with the extra amazon, and the test tools
env-ministack: $(MINISTACK)/.made ## .venv-ministack: the local SQS server

$(VENV)/.made: pyproject.toml constraints.txt
	$(call environment,$(VENV),constraints.txt,--group dev --editable '.[all]',some 300 MB)

# Compiled from source, so apart from what a demo needs.
$(VENV)/.servicebus-emulator: $(VENV)/.made
	@echo "==> $(VENV): compiling the AMQP engine of the Service Bus emulator (needs a C compiler; half a minute the first time)"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --group servicebus-emulator
	@touch $@

# botocore is pinned to the release by aioboto3, aiobotocore and ministack, each to another one: hence three environments.
$(AMAZON)/.made: pyproject.toml constraints-amazon.txt
	$(call environment,$(AMAZON),constraints-amazon.txt,--group airflow --group test --editable '.[amazon]',some 300 MB)

$(MINISTACK)/.made: pyproject.toml constraints-ministack.txt
	$(call environment,$(MINISTACK),constraints-ministack.txt,--group ministack,some 30 MB)

lock: ## resolve all three environments anew and write constraints*.txt
	$(call lock,constraints.txt,--group dev --group servicebus-emulator --editable '.[all]')
	$(call lock,constraints-amazon.txt,--group airflow --group test --editable '.[amazon]')
	$(call lock,constraints-ministack.txt,--group ministack)

.PHONY: clean
clean: ## remove everything that these targets made
	rm -rf .venv .venv-amazon .venv-ministack .local dist build docs/_build
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
