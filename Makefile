# Each target makes what it needs: `make demo` on a fresh clone is enough.
#
#   TORCH=cpu    PyTorch from its own index of CPU builds (about 200 MB where the default, on
#                Linux, brings several GB of CUDA libraries)
#   PYTHON=...   the interpreter that .venv is made with
#   ARGS=...     arguments for `make demo` and for pytest in `make test`
#   WORKERS=2    processes that run tests at the same time, each with up to 2 GB of memory
#   STAGE=...    the stages for `make grade`; none: how far you are

TORCH_VERSION := 2.13.0
TORCH   ?=
PYTHON  ?= python3
ARGS    ?=
WORKERS ?= 2
STAGE   ?=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN   := .venv/bin
READY := .venv/minipaged-ready
LINTED := .venv/minipaged-linted

# A virtual environment knows its own path: one that was made elsewhere is made again.
ifneq "$(shell cat $(READY) 2>/dev/null)" "$(CURDIR)"
.PHONY: $(READY)
endif

.PHONY: help setup model demo grade test lint notebooks book pictures mutants check-generated clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s  %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make .venv with everything in it
	@echo "Ready. What to do next: $(BIN)/minipaged grade"

$(READY): pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "make: there is no $(PYTHON); install Python 3.11 or later, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	  "make: minipaged needs Python 3.11 or later and $(PYTHON) is %d.%d; name another: make PYTHON=python3.11" % v[:2])'
	@[ ! -L .venv ] || [ ! -e $(BIN)/python ] || [ "$$(cat $(READY) 2>/dev/null)" = "$(CURDIR)" ] || { \
	  echo "make: .venv is a link to $$(readlink .venv), the environment of something else: remove the link" >&2; exit 1; }
	@[ "$(TORCH)" = cpu ] || [ -z "$(TORCH)" ] || { echo "make: TORCH is cpu or empty, not '$(TORCH)'" >&2; exit 1; }
	@if [ -e $(READY) ] && [ "$$(cat $(READY))" != "$(CURDIR)" ] || ! $(BIN)/python -c '' 2>/dev/null; then \
	  echo "Making .venv ..."; "$(PYTHON)" -m venv --clear .venv; fi
	@if ! $(BIN)/python -c 'import importlib.metadata as m; \
	    exit(m.version("torch").split("+")[0] != "$(TORCH_VERSION)")' 2>/dev/null; then \
	  if [ "$(TORCH)" = cpu ]; then \
	    echo "Installing torch $(TORCH_VERSION), CPU build ..."; \
	    $(BIN)/python -m pip install -qq --disable-pip-version-check \
	      --index-url https://download.pytorch.org/whl/cpu "torch==$(TORCH_VERSION)"; \
	  else \
	    [ "$$(uname -s)" != Linux ] || command -v nvidia-smi >/dev/null || \
	      echo "No NVIDIA GPU is seen here: 'make setup TORCH=cpu' would download far less."; \
	    echo "Installing torch $(TORCH_VERSION) (a large download) ..."; \
	    $(BIN)/python -m pip install -qq --disable-pip-version-check "torch==$(TORCH_VERSION)"; \
	  fi; fi
	@echo "Installing minipaged and what it needs ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@printf '%s' "$(CURDIR)" > $(READY)

model: $(READY) ## get SmolLM2-135M-Instruct into the user's cache
	@$(BIN)/minipaged fetch

demo: model ## sixteen real requests share one paged pool
	@$(BIN)/minipaged demo $(ARGS)

# Exit status 1 of the command means that points are missing, and the score card has said so.
grade: $(READY) ## grade your exercises: make grade STAGE=2
	@$(BIN)/minipaged grade $(STAGE) || [ $$? = 1 ]

# Without the model (no network, say) the tests that need it are skipped and say so, unless
# MINIPAGED_REQUIRE_MODEL is set, as .ci/run does: then they fail.
test: lint ## ruff, mypy and the tests
	@$(MAKE) model || echo "make: going on without SmolLM2: the tests that need it are skipped"
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile $(ARGS)

lint: $(LINTED) ## ruff and mypy alone
	@:

SOURCES := $(shell find minipaged kernels lessons notebooks scripts tests -name '*.py' -not -path 'minipaged/kernels/*' 2>/dev/null)

$(LINTED): $(READY) pyproject.toml $(SOURCES)
	@$(BIN)/python -m ruff check --quiet .
	@$(BIN)/python -m ruff format --check --quiet . || { \
	  echo "make: not formatted; '$(BIN)/ruff format' mends it" >&2; $(BIN)/python -m ruff format --check .; }
	@$(BIN)/python -m mypy
	@touch $(LINTED)

notebooks: $(READY) ## open the notebooks in JupyterLab
	@$(BIN)/jupyter lab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/notebooks

book: $(READY) ## build lessons and executed notebooks into a site: build/book/html
	@$(BIN)/python scripts/book.py

pictures: $(READY) ## draw the lessons' pictures again
	@$(BIN)/python scripts/lesson_pictures.py

# `make test` holds each mutant to the check that is on record for it; this runs all checks again.
mutants: $(READY) ## grade the grader: wrong parts must be rejected; rewrites their signatures
	@$(BIN)/minipaged mutants --write $(STAGE)

check-generated: $(READY) ## are exercises, notebooks and the FAQ as their sources would have them?
	@$(BIN)/minipaged sync --check
	@$(BIN)/python scripts/faq.py --check

clean: ## remove .venv and what the tools left behind (never the model)
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
