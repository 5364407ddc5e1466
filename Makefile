# Everything a newcomer needs. Each goal makes the environment by itself when it is missing or stale.
#
#   PYTHON       interpreter that makes the environment (3.11 or newer)
#   TORCH_INDEX  package index for torch, such as https://download.pytorch.org/whl/cpu
#   PIP_ARGS     anything else for `pip install`
#   ARGS         passed on: make test ARGS='-k ring', make bench ARGS=--quick, make demo ARGS=--help

PYTHON      ?= python3
TORCH_INDEX ?=
PIP_ARGS    ?=
ARGS        ?=

VENV   := .venv
NEEDED := dev
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SOURCES := src tests $(wildcard benchmarks reproduce examples docs)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-rest test-full test-extras extras-here test-torch lint format docs site site-here reproduce bench mutants clean

help: ## show this list
	@echo "Syncopate: moves gradient communication off the critical path."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Variables: PYTHON, TORCH_INDEX, PIP_ARGS, ARGS (see the top of the Makefile)."

# pip's ninety lines go to a file, the last of them to the terminal where it fails.
LOG = $(VENV)/install.log
quietly = $(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt $(1) >$(LOG) 2>&1 || { \
	  tail -n 20 $(LOG) >&2; echo "error: pip could not install this; all it said is in $(LOG)" >&2; exit 1; }

$(READY): pyproject.toml setup.py src/syncopate.pth constraints.txt
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "error: '$(PYTHON)' not found; install Python 3.11 or newer, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1); Syncopate needs Python 3.11 or newer: make PYTHON=python3.12" >&2; exit 1; }
	@rm -f $@
	@echo "==> [1/3] environment in $(VENV) ($$($(PYTHON) -V))"
	@test -x $(BIN)/python || $(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
	  echo "error: cannot make $(VENV); on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "==> [2/3] torch, the large one: a few minutes on the first run (what pip says: $(LOG))"
	@$(call quietly,$(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch)
	@echo "==> [3/3] syncopate and its tools"
	@$(call quietly,-e '.[$(NEEDED)]')
	@touch $@
	@echo "==> ready"

demo: $(READY) ## the whole story on local processes and real data
	@$(BIN)/syncopate demo $(ARGS)

# One more at a time than there are cores (tests/conftest.py): many tests wait for ranks that wait for
# each other. Files stay whole, for what their tests share, and in their order: the long ones come
# first. The package is compiled once, not by each of the hundred processes that tests start, which
# keep nothing where PYTHONDONTWRITEBYTECODE is set.
# Each leaves a JUnit file in out/.
PYTEST = $(BIN)/python -m compileall -q src && $(BIN)/python -m pytest -n auto --dist loadfile \
	--no-loadscope-reorder -ra

test: $(READY) ## every room and real ranks: some minutes
	@$(PYTEST) -m 'not full' --junitxml=out/test.xml $(ARGS)

test-rest: $(READY) ## what `make test` leaves out: labs, faults, frameworks, hundreds of programs
	@$(PYTEST) -m full --junitxml=out/test-rest.xml $(ARGS)

test-full: $(READY) ## every test, in one run
	@$(PYTEST) --junitxml=out/test-full.xml $(ARGS)

# In an environment of its own. PIP_ARGS and the others are handed on.
test-extras: ## what needs optional dependencies, with all of them: a skipped test fails
	@$(MAKE) --no-print-directory VENV=.venv-extras NEEDED=everything extras-here

# The programs that no Python package has, before the packages, which take minutes.
PROGRAMS := chromium chromedriver mpirun zsh fish
extras-here:
	@for program in $(PROGRAMS); do command -v $$program >/dev/null 2>&1 || { \
	  echo "error: no $$program; on Debian and Ubuntu: apt install chromium chromium-driver openmpi-bin libopenmpi-dev zsh fish" >&2; exit 1; }; done
	@$(MAKE) --no-print-directory VENV=$(VENV) NEEDED=$(NEEDED) $(READY)
	@$(PYTEST) -m extras --no-skips --junitxml=out/test-extras.xml $(ARGS)

# Each in an environment of its own, which holds nothing but what these tests need.
VERSIONS ?= 2.13.0
test-torch: ## what the engine takes of torch's inside, with other versions: VERSIONS="2.11.0 2.13.0"
	@set -e; for version in $(VERSIONS); do \
	  venv=.venv-torch-$$version; echo "==> torch $$version"; \
	  test -x $$venv/bin/python || $(PYTHON) -m venv $$venv; \
	  grep -v '^torch==' constraints.txt > $$venv/constraints.txt; \
	  $$venv/bin/python -m pip install --quiet $(PIP_ARGS) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) \
	    -c $$venv/constraints.txt torch==$$version; \
	  $$venv/bin/python -m pip install --quiet $(PIP_ARGS) -c $$venv/constraints.txt \
	    numpy msgspec rich pytest pytest-timeout hypothesis; \
	  PYTHONPATH=src $$venv/bin/python -m pytest tests/unit/engine/test_torch_compat.py; \
	done

lint: $(READY) ## style, formatting and types
	@echo "==> ruff check";  $(BIN)/ruff check $(SOURCES)
	@echo "==> ruff format"; $(BIN)/ruff format --check $(SOURCES)
	@echo "==> mypy";        $(BIN)/mypy

format: $(READY) ## put the formatting right
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

docs: $(READY) ## renew the generated tables and the frozen public surface
	@$(BIN)/python docs/generate.py
	@$(BIN)/python -m tests.test_public_surface

# In an environment of its own, which has mkdocs and no torch. PIP_ARGS and the others are handed on.
site: ## the pages as a website with search, in out/site
	@$(MAKE) --no-print-directory VENV=.venv-site site-here

SITE_READY := $(VENV)/.site
$(SITE_READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "error: '$(PYTHON)' not found; install Python 3.11 or newer, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@rm -f $@
	@echo "==> mkdocs in $(VENV) (what pip says: $(LOG))"
	@test -x $(BIN)/python || $(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
	  echo "error: cannot make $(VENV); on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(call quietly,'.[site]')
	@touch $@

site-here: $(SITE_READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict $(ARGS)
	@echo "==> open out/site/index.html"

# What every paper's script shows, then all figures of the papers, and the tables of docs/reproduce.md.
PAPERS := mg_wfbp linear_pipeline blueconnect ssd_sgd ssd_sgd_search glu_stability late_pulls sketchdlc sketchdlc_networks papers
reproduce: $(READY) ## the five papers' figures anew, and their page: some minutes (ARGS=--quick: one)
	@set -e; for script in $(PAPERS); do \
	  echo "==> reproduce/$$script.py"; $(BIN)/python reproduce/$$script.py $(ARGS); \
	done

bench: $(READY) ## every benchmark, in turn: two hours (ARGS=--quick: a few minutes)
	@set -e; for script in benchmarks/*.py; do \
	  test -e "$$script" || { echo "no benchmarks here"; break; }; \
	  echo "==> $$script"; $(BIN)/python "$$script" $(ARGS); \
	done

mutants: $(READY) ## how many small faults the tests notice, by a sample: about an hour
	@test -x $(BIN)/mutmut || $(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e '.[mutation]'
	@$(BIN)/python -m tests.mutants $(ARGS)

clean: ## remove the environment, caches and what the demo wrote
	rm -rf $(VENV) .venv-extras .venv-site .venv-torch-* build dist out mutants syncopate-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +
