# The daily commands; `make help` lists them. Nothing here needs root, except the tests of a real kubelet, which say so and skip.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help up test browser check soak bench lint fmt lock sbom crds screenshots proto docs clean

CACHE := $(or $(GPUCLAIM_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpuclaim)
UV := $(or $(shell command -v uv 2>/dev/null),$(CACHE)/uv/bin/uv)
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
ARGS ?=

help: ## what there is
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  Extra arguments: make up ARGS='--scenario tour', make test ARGS='-k lease'"

up: $(READY) ## a whole cloud on this machine, ready to order from (Ctrl-C ends it)
	@$(VENV)/bin/gpuclaim up $(ARGS)

test: $(READY) browser ## every test: unit, property, cases, and the real components
	@$(VENV)/bin/pytest $(ARGS)

browser: ## install Chromium for the tests of the page, where there is none (as root, on Debian)
	@tests/browser.sh

check: lint ## linters and the tests that run in seconds
	@$(VENV)/bin/pytest -m "not real and not simulated" $(ARGS)

soak: $(READY) ## play the controller against a simulated apiserver, one history a seed (ARGS='--seeds 5000 --start 1', '--seed N')
	@PYTHONPATH=tests $(VENV)/bin/python -m simulator $(ARGS)

bench: $(READY) ## measure (nothing is asserted); ARGS=--help lists what; without ARGS the agent's too
	@$(VENV)/bin/python -m bench $(ARGS)
	@$(if $(ARGS),,$(VENV)/bin/python bench/cli.py)
	@$(if $(ARGS),,$(VENV)/bin/python bench/agent/bench.py)

lint: $(READY) ## ruff, mypy, the import layers
	@$(VENV)/bin/ruff format --check --quiet . || { echo "make fmt mends the formatting"; exit 1; }
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/mypy --no-error-summary
	@out=$$($(VENV)/bin/lint-imports) || { echo "$$out"; exit 1; }

fmt: $(READY) ## format, and mend what ruff can mend
	@$(VENV)/bin/ruff format --quiet . && $(VENV)/bin/ruff check --fix --quiet .

lock: $(UV) ## resolve the dependencies anew into requirements/ (add ARGS=--upgrade)
	@$(UV) pip compile --quiet --universal --generate-hashes --no-header $(ARGS) pyproject.toml -o requirements/runtime.txt
	@$(UV) pip compile --quiet --universal --generate-hashes --no-header $(ARGS) -c requirements/runtime.txt --group dev pyproject.toml -o requirements/dev.txt

sbom: $(READY) ## write the image's bill of materials, sbom.cdx.json (CycloneDX), from the locked requirements
	@# It warns that a list of requirements says nothing of who needs whom.
	@PYTHONWARNINGS=ignore $(VENV)/bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible --spec-version 1.6 \
	  --output-file $(or $(SBOM),sbom.cdx.json) requirements/runtime.txt

crds: $(READY) ## write the CRDs, the guard and the dashboard into the chart, after a change of any
	@$(VENV)/bin/gpuclaim crds --into chart/gpuclaim/templates/crds
	@$(VENV)/bin/python chart/generate.py && $(VENV)/bin/python chart/dashboard.py

screenshots: $(READY) browser ## take the pictures of the page anew, from a cloud as of `make up`
	@PYTHONPATH=tests $(VENV)/bin/python -m screenshots

proto: $(READY) ## generate the gRPC messages anew, after a change of a .proto
	@$(VENV)/bin/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/gpuclaim/agent/proto/podresources.proto

docs: $(READY) ## write the pages of the API and of the command line, after a change of either
	@$(VENV)/bin/python docs/reference/generate.py

clean: ## forget the virtual environment (the cache of built binaries stays)
	rm -rf $(VENV) build dist

$(READY): $(UV) requirements/dev.txt pyproject.toml
	@echo "gpuclaim: Python packages (first time: about a minute)"
	@test -x $(VENV)/bin/python || $(UV) venv --quiet $(VENV)
	@$(UV) pip sync --quiet --compile-bytecode --require-hashes --python $(VENV)/bin/python requirements/dev.txt
	@$(UV) pip install --quiet --no-deps --no-build-isolation --python $(VENV)/bin/python -e .
	@touch $@

$(CACHE)/uv/bin/uv:
	@echo "gpuclaim: uv is not on PATH; into $(@D) it goes"
	@# Made aside and moved: two checkouts may get here at once.
	@mkdir -p $(@D) && made=$$(mktemp -d $(CACHE)/uv/new.XXXXXX) && trap 'rm -rf "$$made"' EXIT && \
	  $(PYTHON) -m venv $$made && $$made/bin/pip install --quiet uv==0.13.9 && mv -f $$made/bin/uv $@ || { \
	  echo "Could not install uv. Python >= 3.11 with venv and pip is needed, and the Python package registry within reach." >&2; exit 1; }
