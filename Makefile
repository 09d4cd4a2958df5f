# `make help` lists the targets. Nothing but Python 3.10+ with pip is needed beforehand.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
AMAZON := .venv-amazon
MINISTACK := .venv-ministack

# $(call environment,folder,constraints,arguments of pip install): makes the virtual environment and says how long it took.
define environment
	@echo "==> $(1): installing what $(2) pins"
	@started=$$SECONDS; \
	$(PYTHON) -m venv --clear $(1); \
	$(1)/bin/python -m pip install --quiet --upgrade --constraint $(2) pip; \
	$(1)/bin/python -m pip install --quiet --constraint $(2) $(3); \
	echo "==> $(1): ready after $$((SECONDS - started)) s"
	@touch $@
endef

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: env env-amazon env-ministack
env: $(VENV)/.made ## make .venv: the package, editable, with every extra but amazon, and all tools
env-amazon: $(AMAZON)/.made ## make .venv-amazon: the package, editable, with the amazon extra, and the test tools
env-ministack: $(MINISTACK)/.made ## make .venv-ministack: the local SQS server

$(VENV)/.made: pyproject.toml constraints.txt
	$(call environment,$(VENV),constraints.txt,--group dev --editable '.[all]')

$(AMAZON)/.made: pyproject.toml constraints-amazon.txt
	$(call environment,$(AMAZON),constraints-amazon.txt,--group airflow --group test --editable '.[amazon]')

$(MINISTACK)/.made: constraints-ministack.txt
	$(call environment,$(MINISTACK),constraints-ministack.txt,ministack)
