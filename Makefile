# Every target does its own set-up: a virtual environment in this directory, filled by pip, again
# whenever pyproject.toml changes. All that is needed is make and Python 3.11 or newer.
#
#     make test                      the newest Python found
#     make test PYTHON=python3.11    another one, in an environment of its own
#     make test ARGS='-k sharding'   arguments for pytest (or for the demo, or the benchmarks)
#     make test JOBS=0               in one process

PYTHON =
VENV = .venv$(if $(PYTHON),-$(notdir $(PYTHON)))
ARGS =
JOBS = 3

# Hundreds of processes are started by the tests: none of them should compile everything again.
unexport PYTHONDONTWRITEBYTECODE

BIN = $(VENV)/bin
# Tests run in JOBS processes, one more than CI has cores, since many wait; those of a module stay
# together in one of them.
PYTEST = $(BIN)/python -m pytest -q $(if $(filter-out 0,$(JOBS)),-n $(JOBS) --dist loadfile)
# Where memory has room, the temporary files of `make test` are there, which takes a third off its time;
# other targets have them on the disk, so that the stores are tried on both kinds of file systems.
MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk '$$4 > 8000000 && NR == 2 { print $$6 }')
# Quick tests of every layer below the jobs, for an older Python after a newer one ran everything.
FAST_TESTS = $(wildcard tests/test_*.py) $(addprefix tests/,_util grid indexing dtypes stores codecs formats \
    array hierarchy cli) zarr_dask
# Left out of them: comparisons with peers, which are too old there.
FAST_TESTS += $(addprefix --ignore=tests/,codecs/numeric/test_cast_value.py codecs/test_numcodecs.py \
    grid/test_rectilinear.py stores/backends/test_zarr_python.py)

.PHONY: help venv demo check test test-ci servers test-fast test-all conformance compat docs bench bench-remote bench-sweep lint types clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

help: ## say what there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1@\2/p' $(firstword $(MAKEFILE_LIST)) | \
	    awk -F@ '{printf "%-18s %s\n", $$1, $$2}'

venv: $(VENV)/.installed-dev ## the environment with all that developing needs

demo: $(VENV)/.installed-demo ## a simulation, its rechunked copy and two pictures, in demo-output/
	$(BIN)/python -m examples.tsunami $(ARGS)

check: $(VENV)/.installed-dev ## in a minute: ruff, mypy, the quick tests of what differs from main
	$(BIN)/python -m tools.check $(ARGS)

test: $(VENV)/.installed-test .venv-zarr2/.installed ## the tests (at most 6 minutes on 2 cores)
	PYTEST_DEBUG_TEMPROOT=$(MEMORY) $(PYTEST) $(if $(MEMORY),-o tmp_path_retention_policy=failed) $(ARGS)

test-ci: $(VENV)/.installed-test .venv-zarr2/.installed ## what CI runs besides: other libraries and their suites, services, many processes, memory
	$(PYTEST) -m 'ci and not slow' $(ARGS)

servers: ## storage servers for the tests, from npm and Debian; without one its tests are skipped
	tools/servers.sh

test-fast: $(VENV)/.installed-test ## the quick tests of the lower layers
	$(PYTEST) -m 'not slow and not cluster' $(FAST_TESTS) $(ARGS)

test-all: $(VENV)/.installed-test .venv-zarr2/.installed ## all tests, the slow ones too, with many more random examples
	tools/servers.sh azurite nginx s3rver slurm openmpi gfortran bindfs radosgw seaweedfs
	HYPOTHESIS_PROFILE=nightly $(PYTEST) -m '' --timeout 1800 $(ARGS)

conformance: $(VENV)/.installed-test .venv-zarr2/.installed ## the statements of the specifications, one by one
	$(PYTEST) -p tests.conformance -m conformance --tb short -r f tests $(ARGS)

bench: $(VENV)/.installed-test ## the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

bench-remote: $(VENV)/.installed-test ## the same on S3 with 20 ms more for each request, beside peers
	$(BIN)/python -m benchmarks.remote

bench-sweep: $(VENV)/.installed-test ## every access, codec and layout beside peers; prints where a peer is ahead
	$(BIN)/python -m benchmarks.sweep $(ARGS)

compat: $(VENV)/.installed-test .venv-zarr2/.installed ## docs/reference/compat.md, every cell tried again
	$(BIN)/python -m tools.compat

docs: $(VENV)/.installed-docs ## the documentation site, in build/site; warnings and dead links are errors
	NO_MKDOCS_2_WARNING=true PYTHONPATH=. $(BIN)/python -m mkdocs build --strict --quiet $(ARGS)

lint: $(VENV)/.installed-dev ## ruff
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev ## mypy
	$(BIN)/python -m mypy

clean: ## remove caches and output (environments stay)
	rm -rf demo-output bench-output build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name '.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +

# The last zarr-python of the 2 line, a peer of the tests, in an environment of its own: its numcodecs
# is too old for ours, and for Python 3.14. Where no older Python runs, its tests are skipped. Its
# sharding of the draft imports pytest, its msgpack2 codec msgpack.
.venv-zarr2/.installed: Makefile
	@for command in python3.13 python3.12 python3.11; do \
	    python=$$(tools/python.sh $$command 2>/dev/null) && break; done; \
	if test -n "$$python"; then echo "Making .venv-zarr2 with $$python" && \
	    "$$python" -m venv --clear .venv-zarr2 && \
	    .venv-zarr2/bin/python -m pip install -qq --disable-pip-version-check \
	    'zarr==2.18.7' pytest msgpack; fi
	@mkdir -p .venv-zarr2 && touch $@

# One stamp for each dependency group of pyproject.toml, which pip knows since 25.1. What is there without a pip that runs is an environment
# half made: it is cleared, but only if it is an environment.
$(VENV)/.installed-%: pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	    python=$$(tools/python.sh $(PYTHON)) && echo "Making $(VENV) with $$python" && \
	    "$$python" -m venv $$(test ! -f $(VENV)/pyvenv.cfg || echo --clear) $(VENV); }
	@echo "Installing zarr-dask and its group $* into $(VENV) (this can take some minutes)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check 'pip>=25.1'
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e . --group '$*'
	@touch $@
