# Everything a contributor types. A machine needs python3 (3.11 or later) and make; the rest is installed into .venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
FOLDER ?= tests/data/cases
T ?= tests

.DEFAULT_GOAL := help
.PHONY: help demo test check fix bench cases docs lock clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## install firekeep into .venv and show it on sample files (writes demo-out/)
	@PATH="$(abspath $(BIN)):$$PATH" bash examples/demo.sh

test: $(VENV)/.installed-dev ## run all tests, or a part: make test T=tests/cli
	$(BIN)/python -m pytest $(T)

check: $(VENV)/.installed-dev ## formatting, lint, types and the import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/python -m pytest -q tests/architecture/test_layers.py

fix: $(VENV)/.installed-dev ## format the code and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev ## time firekeep beside its peers (a few minutes; needs a quiet machine)
	$(BIN)/python -m benchmarks

cases: $(VENV)/.installed-dev ## judge firekeep on a folder of real files: make cases FOLDER=tests/data/cases
	$(BIN)/python tools/cases.py $(FOLDER)

docs: $(VENV)/.installed-dev ## write docs/cli.md, the tables of layers, and what README.md and the guides show, from what runs
	$(BIN)/python tools/make_cli_docs.py
	$(BIN)/python tools/make_layer_docs.py
	$(BIN)/python tools/make_outputs.py

lock: $(VENV)/.installed-dev ## write requirements/dev.txt from pyproject.toml
	$(PIP) pip-tools
	$(BIN)/python tools/make_lock.py

clean: ## remove what these commands made, but for the virtual environment
	rm -rf demo-out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Stamps: an install runs again only when what it installs from has changed.
$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "firekeep needs Python 3.11 or later; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml requirements/dev.txt | $(BIN)/python
	$(PIP) --constraint requirements/dev.txt --editable .
	@touch $@

$(VENV)/.installed-dev: requirements/dev.txt $(VENV)/.installed
	$(PIP) --requirement requirements/dev.txt
	@touch $@
