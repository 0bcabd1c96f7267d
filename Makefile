# make run    the quick tier of every spec, on a GPU if there is one, else interpreted; the same
#             cases are the tests of `pytest -n auto`
# make test   lint and the framework's own tests, as CI runs them: `pytest tests`
# make test-ray  the tests on a Ray cluster of two nodes; installs Ray (`make ray`) first
# make test-fast  the tests without those marked `slow` (whole kernels, commands with workers
#             or many cases, nvcc; listed in tests/slow_tests.py): for the loop of editing
# make compile  every kernel of every spec assembled for its architectures; needs nvcc, no GPU
#               (TIER=quick: with every two values of axes, hours of a core)
# make mutants  mutation testing: runs specs on mutants of the kernels, reports how many they find
# make upstream TILELANG=DIR  TileLang's own examples and tests on the interpreter, from a checkout
# make fuzz-framework  5,000 made-up specs through load, expand and draw: cases or located errors
# make lint   ruff, mypy and the import rules
# make dist   a source distribution and the wheel made from it, in dist
# make docs   the documentation as a site, in build/site

PYTHON ?= python3
VENV ?= .venv
# What was tested together. To keep a PyTorch that is already installed:
#   make run SYSTEM_TORCH=1
CONSTRAINTS ?= constraints.txt
ifdef SYSTEM_TORCH
VENV_FLAGS := --system-site-packages
CONSTRAINTS := .venv-constraints.txt
endif

# Of make compile: worker processes, a core each, and how many cases.
JOBS ?= auto
TIER ?= each

# Of make upstream: a checkout of TileLang's repository, and further arguments such as `--write`.
TILELANG ?=
UPSTREAM ?=

# Of make fuzz-framework: how many specs.
SPECS ?= 5000

# Optional dependencies that `make setup` installs; CI adds Ray.
EXTRAS ?= dev

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run test tests ray test-ray test-fast bytecode compile mutants upstream fuzz-framework lint docs dist setup clean

run: setup bytecode
	$(BIN)/tlmatrix run specs

# A worker that is done takes tests from the other's end, so that none idles at the end. Tests are
# kept as bytecode too.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest tests -n auto --dist worksteal

# Lint beside the tests: mypy has one process.
test: setup
	$(MAKE) --no-print-directory --jobs=2 lint tests

tests: setup bytecode
	$(PYTEST)

# With Ray, `make test` has the test of a run on a cluster; that of a search is in `test-ray` alone.
ray: setup
	@$(BIN)/python -c 'import ray' 2> /dev/null || $(BIN)/python -m pip install --quiet \
	    --disable-pip-version-check --constraint $(CONSTRAINTS) --editable '.[ray]' || \
	    echo "Ray cannot be installed: its tests are skipped"

test-ray: ray
	TLMATRIX_TEST_RAY=all $(BIN)/python -m pytest tests/engine/test_ray.py -n 0

test-fast: setup bytecode
	$(PYTEST) -m 'not slow'

# Tests start hundreds of processes, which need not compile the sources again, even where
# PYTHONDONTWRITEBYTECODE is set. Of the libraries that is what a run imports, a fifth of their
# modules, so that pip need not compile all of them.
bytecode: setup
	$(BIN)/python -m compileall -q -j 0 tlmatrix kernels
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -c 'import hypothesis, pytest, tlmatrix.engine.preload'

# What is assembled is kept, so this goes on where it was stopped.
compile: setup
	$(BIN)/tlmatrix run specs --backend compile -n $(JOBS) --tier $(TIER)

# Goes on where it was stopped, as long as neither kernels nor the framework change.
mutants: setup
	$(BIN)/python tests/mutants/run_mutants.py

# Goes on where it was stopped, as long as the interpreter does not change.
upstream: setup
	$(BIN)/python tests/upstream/run_upstream.py $(TILELANG) $(UPSTREAM)

fuzz-framework: setup
	TLMATRIX_FRAMEWORK_SPECS=$(SPECS) $(BIN)/python -m pytest tests/fuzz/test_framework.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The wheel is made from the source distribution, so that an incomplete one fails here.
dist: setup
	rm -rf dist
	$(BIN)/python -c "from setuptools import build_meta; build_meta.build_sdist('dist')"
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist dist/*.tar.gz

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	grep -v '^torch==' constraints.txt > .venv-constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
	    --constraint $(CONSTRAINTS) --editable '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(VENV) .venv-constraints.txt build *.egg-info results
