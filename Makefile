# All commands for people. `make help` lists them. Each target does its own set-up.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# The distribution's own where it is new enough: built with profile-guided optimisation, as the
# images' is, it takes a quarter less CPU than one that pyenv has compiled (docs/benchmarks.md).
GIVEN := $(filter command environment,$(firstword $(origin PYTHON)))
PYTHON ?= $(firstword $(wildcard $(addprefix /usr/bin/python3.,13 12 11)) python3)
VENV := .venv
# With `make test PYTHON=/path/to/python3.13` the environment is another one, so that both stay.
ifneq ($(GIVEN),)
VERSION_OF := import sys; sys.version_info >= (3, 11) and print(sys.version.split()[0])
PYTHON_VERSION := $(shell '$(PYTHON)' -c '$(VERSION_OF)' 2>/dev/null)
ifeq ($(PYTHON_VERSION),)
$(error PYTHON=$(PYTHON): it can't be run, or is older than Python 3.11; name one that runs, or leave PYTHON out)
endif
VENV := build/env-$(PYTHON_VERSION)
export PYTHON
endif
BIN := $(VENV)/bin
UV := $(shell command -v uv || echo build/uv/bin/uv)
CURVES := build/bench/curves-env
PACKAGING := build/packaging-env
DOCS := build/docs-env
BMC := build/bmc-env
NVRX := build/nvrx
RAY := build/ray-env
# BENCH_SMALL=1 runs any benchmark in a small form, for its command and keys alone.
BENCH_FOLDER ?= build/bench$(if $(filter-out 0,$(BENCH_SMALL)),-small)
export BENCH_SMALL BENCH_FOLDER
BENCHES := taint agent scale nodes faults repair network fleet jobs history hostile install page slurm

.PHONY: help
help: ## This list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# -- set-up ------------------------------------------------------------------
build/uv/bin/uv:
	@echo "uv is not on the path: installing it from PyPI into build/uv"
	@requirements/install-uv.sh build/uv $(PYTHON) python3

# The stamp is named in the tree, so only a changed lock causes a new sync.
$(VENV)/.synced: requirements/dev.txt pyproject.toml | $(UV)
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: env
env: $(VENV)/.synced ## The locked environment in .venv

.PHONY: lock
lock: | $(UV) ## Compile the hashed requirements again from pyproject.toml
	@for extra in agent aggregator; do \
	  $(UV) pip compile --quiet pyproject.toml --extra $$extra --generate-hashes --universal \
	    --python-version 3.11 --no-header --upgrade --output-file requirements/$$extra.txt; done
	@$(UV) pip compile --quiet pyproject.toml --extra cli --constraint requirements/aggregator.txt \
	  --generate-hashes --universal --python-version 3.11 --no-header --upgrade \
	  --output-file requirements/cli.txt
	@$(UV) pip compile --quiet pyproject.toml --extra agent --extra aggregator --extra apprise \
	  --group dev \
	  --generate-hashes --universal --python-version 3.11 --no-header --upgrade \
	  --output-file requirements/dev.txt
	@for group in bench bmc docs packaging; do \
	  $(UV) pip compile --quiet --group $$group --constraint requirements/dev.txt \
	    --generate-hashes --universal --python-version 3.11 --no-header --upgrade \
	    --output-file requirements/$$group.txt; done
	@echo 'ray[default]' | $(UV) pip compile --quiet - --generate-hashes --universal \
	  --python-version 3.11 --no-header --upgrade --output-file requirements/ray.txt
	@echo uv | $(UV) pip compile --quiet - --generate-hashes --universal --python-version 3.11 \
	  --no-header --upgrade --output-file requirements/uv.txt
	@echo hatchling | $(UV) pip compile --quiet - --constraint requirements/dev.txt --generate-hashes \
	  --universal --python-version 3.11 --no-header --output-file requirements/build.txt

.PHONY: proto
proto: env ## Generate sickbay.v1 from proto/
	@cd proto && ../$(BIN)/python -m grpc_tools.protoc -I. \
	  --plugin=protoc-gen-mypy=../$(BIN)/protoc-gen-mypy \
	  --plugin=protoc-gen-mypy_grpc=../$(BIN)/protoc-gen-mypy_grpc \
	  --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. sickbay/v1/*.proto

.PHONY: chart
chart: env ## What is made of deploy/: the Helm chart's files and golden renderings, the PrometheusRule, the dashboard
	@$(BIN)/python -m tests.chart

# -- the documentation site ----------------------------------------------------
# Only the site needs it, so no other target's environment has it.
$(DOCS)/.synced: requirements/docs.txt | $(UV)
	@test -x $(DOCS)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(DOCS)
	@$(UV) pip sync --quiet --python $(DOCS)/bin/python --require-hashes requirements/docs.txt
	@touch $@

VERSION ?= dev

# Flask and its like are the emulator's alone: no other target's environment has it.
$(BMC)/.synced: requirements/bmc.txt | $(UV)
	@test -x $(BMC)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(BMC)
	@$(UV) pip sync --quiet --python $(BMC)/bin/python --require-hashes requirements/bmc.txt
	@touch $@

# The health check of NVIDIA's launcher, for the tests of its socket: modules alone, since what the
# wheel requires (torch) is 2 GiB, and no wheel is for this Python or an older glibc.
NVRX_TARGET = --no-deps --python-version 3.12 --python-platform $(shell uname -m)-manylinux_2_39
$(NVRX)/%/.synced: requirements/nvrx-%.txt | $(UV)
	@$(UV) pip install --quiet --target $(@D) $(NVRX_TARGET) --require-hashes --requirement $<
	@touch $@

# Ray itself, for the test of its example: 250 MiB.
$(RAY)/.synced: requirements/ray.txt | $(UV)
	@test -x $(RAY)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(RAY)
	@$(UV) pip sync --quiet --python $(RAY)/bin/python --require-hashes requirements/ray.txt
	@touch $@

.PHONY: docs
docs: $(DOCS)/.synced ## The documentation site into build/site/VERSION; a broken link is an error (VERSION=0.1.0)
	@$(DOCS)/bin/python -m release.site --version '$(VERSION)'

.PHONY: docs-reference
docs-reference: env ## What is made of code in docs/reference: schemas, commands, rules, fields
	@$(BIN)/python -m release.reference

.PHONY: docs-serve
docs-serve: docs ## The same, served on 127.0.0.1:8000
	@exec $(DOCS)/bin/python -m http.server --bind 127.0.0.1 --directory build/site 8000

# -- the demo and the tests ----------------------------------------------------------
.PHONY: demo
demo: env ## This machine's agent next to simulated nodes, and injected faults
	@exec $(BIN)/sickbay demo $(DEMO_OPTIONS)

.PHONY: demo-cluster
demo-cluster: env ## The same on a real kube-apiserver: watch kubectl get nodes,quarantines
	@exec $(BIN)/python -m tests.demo $(DEMO_OPTIONS)

.PHONY: demo-slurm
demo-slurm: env ## The same on a real Slurm with jobs (root; tests/setup-debian.sh installs it)
	@tests/setup-debian.sh
	@exec $(BIN)/python -m tests.demo --slurm $(DEMO_OPTIONS)

.PHONY: test-setup
test-setup: env ## What make test needs: Debian packages, the control plane (built once, in minutes)
	@tests/setup-debian.sh
	@$(BIN)/python -m tests.controlplane build

.PHONY: test
test: env ## Every check and every test (needs root for mounts, namespaces, the kernel log)
	@tests/setup-debian.sh
	@$(BIN)/python -m tests.side_by_side

FAST_TESTS ?= tests/unit
.PHONY: test-fast
test-fast: env ## Quick unit tests alone: no root, no cluster, seconds
	@$(BIN)/pytest $(FAST_TESTS) -q -m "not slow"

.PHONY: test-pythons
test-pythons: env ## The unit tests on every other supported Python that is found (make test PYTHON=... runs all tests on one)
	@$(BIN)/python -m tests.pythons

.PHONY: test-versions
test-versions: env ## Tests of the Kubernetes client on the oldest Kubernetes that is supported
	@SICKBAY_KUBERNETES=oldest $(BIN)/python -m tests.controlplane build
	@SICKBAY_KUBERNETES=oldest $(BIN)/pytest -q tests/kube

.PHONY: test-changed
test-changed: env ## Tests of files changed since main (CHANGED_SINCE=REV), found by their imports
	@$(BIN)/python -m tests.changed

# Compiled bytecode is kept, as the images have it: without it, each start of a program compiles each
# module again, for 2 s of a core.
KEPT := test-fast test-changed $(BENCHES:%=bench-%)
$(KEPT): export PYTHONPYCACHEPREFIX = $(CURDIR)/build/pycache
$(KEPT): export PYTHONDONTWRITEBYTECODE =

# The same failure again: `make fuzz FUZZ_SEED=...`, with the seed that the run has printed.
FUZZ_SEED ?= $(shell date +%s)
FUZZ_TESTS ?= $(shell grep -rlE --include='test_*.py' '^from hypothesis' tests)

.PHONY: fuzz
fuzz: env ## New random examples for every property and state machine (FUZZ_SEED=7)
	@echo "fuzz: FUZZ_SEED=$(FUZZ_SEED)"
	@HYPOTHESIS_PROFILE=search $(BIN)/pytest -q --hypothesis-seed=$(FUZZ_SEED) $(FUZZ_TESTS)

# The tests of the tests: `make mutants MUTANTS_PACKAGE=policy,membership MUTANTS_COUNT=all`.
MUTANTS_SEED ?= 16
MUTANTS_COUNT ?= 500
MUTANTS_PACKAGE ?=
export MUTANTS_SEED MUTANTS_COUNT MUTANTS_PACKAGE

.PHONY: mutants
mutants: env ## Random mutants of the acting core against the fast tests (MUTANTS_SEED=7)
	@$(BIN)/python -m tests.mutants

.PHONY: deploy-check
deploy-check: env ## The chart with a real Helm and a real cluster (needs root, runc; builds Helm once)
	@$(BIN)/python -m tests.controlplane build helm kubeconform >/dev/null
	@$(BIN)/python -m tests.controlplane.sources
	@$(BIN)/python -m tests.chart.own_network $(BIN)/pytest -q tests/chart/check_*.py tests/chart/test_*.py tests/deploy/test_kustomize.py
	@$(BIN)/pytest -q tests/e2e/test_tutorial.py

.PHONY: lint
lint: env ## ruff, mypy --strict, the layers, the prose, the seams of the core, the pages' JavaScript
	@tests/lint.sh $(BIN)

.PHONY: format
format: env ## Let ruff format and fix the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

# -- what is published --------------------------------------------------------
# Only the tests of these need it, so no other target's environment has it.
$(PACKAGING)/.synced: requirements/packaging.txt | $(UV)
	@test -x $(PACKAGING)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(PACKAGING)
	@$(UV) pip sync --quiet --python $(PACKAGING)/bin/python --require-hashes requirements/packaging.txt
	@touch $@

.PHONY: images
images: env ## Both images with buildah, reproducibly (PLATFORM=linux/arm64 BASE=NAME@sha256:... REPOSITORY=PREFIX/)
	@$(BIN)/python -m release.images $(if $(BASE),--base=$(BASE)) $(if $(REPOSITORY),--repository=$(REPOSITORY)) \
	  $(if $(PLATFORM),--platform=$(PLATFORM)) \
	  --figures $(BENCH_FOLDER)/images.json

.PHONY: packages
packages: env ## The Debian packages of this release, into build/debian
	@$(BIN)/python -m release.debian_packages $(PACKAGES_OPTIONS)

.PHONY: test-packages
test-packages: env $(PACKAGING)/.synced $(RAY)/.synced ## The Debian packages, slurm-operator, PyTorch and Ray themselves (root; minutes)
	@tests/setup-debian.sh python3-torch
	@$(BIN)/pytest -q tests/packages --ignore=tests/packages/test_images.py

.PHONY: test-images
test-images: env $(PACKAGING)/.synced ## Build both images twice on Debian's packages and run them (root; minutes)
	@tests/setup-debian.sh buildah
	@$(BIN)/pytest -q tests/packages/test_images.py

# Where a release goes is an argument; the tree names no place. DRY_RUN=1 prints the commands.
release_option = $(if $($(1)),--$(2)='$($(1))')
.PHONY: release
release: env $(if $(filter-out 0,$(DRY_RUN)),,$(PACKAGING)/.synced) ## Check, tag, build, sign, publish (DRY_RUN=1 REGISTRY= INDEX= REMOTE= BASE= KEY=)
	@$(BIN)/python -m release.publish $(call release_option,REGISTRY,registry) \
	  $(call release_option,INDEX,index) $(call release_option,REMOTE,remote) \
	  $(call release_option,BASE,base) $(call release_option,KEY,key) \
	  $(call release_option,SOURCE,source) $(call release_option,FILES,files) \
	  $(if $(filter-out 0,$(DRY_RUN)),--dry-run)

# -- figures -------------------------------------------------------------------
.PHONY: bench
bench: $(BENCHES:%=bench-%) ## Every benchmark; figures to build/bench/*.json

.PHONY: gpu-check
gpu-check: $(if $(WHEELS),,env) ## On a machine with an NVIDIA GPU: the tests of tests/gpu, the agent's cost
	@PYTHON=$(PYTHON) VENV=$(VENV) tests/gpu/run.sh

.PHONY: trace
trace: env ## What one fault passes in the controller: files, functions, calls
	@$(BIN)/python -m tests.bench.trace

.PHONY: bench-taint
bench-taint: env ## Kernel line to taint on the real API server
	@$(BIN)/python -m tests.bench.taint

.PHONY: bench-agent
bench-agent: env ## The agent's cost (BENCH_SECONDS=60 for a short look)
	@$(BIN)/python -m tests.bench.agent

.PHONY: bench-scale
bench-scale: env $(CURVES)/.synced ## The load that replicas can take (BENCH_NODES=1000 BENCH_PARTS=steady,failover)
	@$(BIN)/python -m tests.bench.scale
	@$(CURVES)/bin/python tests/bench/curves.py

.PHONY: bench-nodes
bench-nodes: env $(CURVES)/.synced ## Replicas that know 50,000 nodes (BENCH_NODES=10000,25000 for a short look)
	@$(BIN)/python -m tests.bench.nodes
	@$(CURVES)/bin/python tests/bench/curves.py

# Only the curves need it, so no other target's environment has it.
$(CURVES)/.synced: requirements/bench.txt | $(UV)
	@test -x $(CURVES)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(CURVES)
	@$(UV) pip sync --quiet --python $(CURVES)/bin/python --require-hashes requirements/bench.txt
	@touch $@

.PHONY: figures
figures: env ## Fill the figures of README.md and docs/ with those of the last benchmarks
	@$(BIN)/python -m tests.bench.documents $(FIGURES_OPTIONS)
	@$(if $(FIGURES_OPTIONS),,$(BIN)/python -m release.reference)

.PHONY: screenshots
screenshots: env ## The pictures and the demo's output in README.md, the picture in docs/tutorial.md (needs Chromium)
	@$(BIN)/python -m tests.demo.screenshot
	@SICKBAY_DEMO_README=1 $(BIN)/pytest -q tests/e2e/test_demo.py -k test_the_demo_tells_its_story
	@SICKBAY_TUTORIAL_PICTURE=docs/figures/tutorial.png $(BIN)/pytest -q tests/e2e/test_tutorial.py

.PHONY: bench-network
bench-network: env ## The nodes that triangulation blames in graphs of known faults (BENCH_GRAPHS=5)
	@$(BIN)/python -m tests.bench.network

.PHONY: bench-faults
bench-faults: env ## Losses when a process dies in a burst (BENCH_DRILLS=paused_replica,...)
	@$(BIN)/python -m tests.bench.faults

.PHONY: bench-repair
bench-repair: env ## Repairs: decision to order, kills of the aggregator, bisection (BENCH_KILLS=20 BENCH_TRIALS=20)
	@$(BIN)/python -m tests.bench.repair

.PHONY: bench-hostile
bench-hostile: env ## The effect of hostile clients on honest nodes (BENCH_TRIALS=10 for a short look)
	@$(BIN)/python -m tests.bench.hostile

.PHONY: bench-install
bench-install: env ## One command from a bare cluster to a page, and an upgrade (needs root, runc; builds Helm once)
	@$(BIN)/python -m tests.chart.own_network $(BIN)/python -m tests.bench.install

.PHONY: bench-page
bench-page: env ## The page at 10,000 nodes in Chromium, and the bytes of a change (BENCH_TRIALS=10)
	@$(BIN)/python -m tests.bench.page

.PHONY: bench-fleet
bench-fleet: env ## A month of a large fleet's faults (BENCH_NODES=1500 BENCH_SEEDS=2 for a short look)
	@$(BIN)/python -m tests.bench.fleet

.PHONY: bench-slurm
bench-slurm: env ## Kernel line to DRAIN on a real Slurm, drills, administrators (BENCH_TRIALS=5 BENCH_SEEDS=100)
	@$(BIN)/python -m tests.bench.slurm

.PHONY: bench-jobs
bench-jobs: env ## What faults cost jobs, reported and true, over a month (BENCH_NODES=1000 BENCH_SEEDS=2)
	@$(BIN)/python -m tests.bench.jobs

.PHONY: bench-history
bench-history: env ## Ten million transitions in SQLite and PostgreSQL (BENCH_ROWS=500000 for a short look)
	@$(BIN)/python -m tests.bench.history

.PHONY: clean
clean: ## Remove the build outputs
	@rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
