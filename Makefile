# Everything on a fresh machine: `make demo` runs the main job, `make test` passes all tests.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name))))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check simulate stories reference bench bench-scheduling bench-numerics exhaustive chaos install clean

install: $(STAMP)

# Torch first and alone: it must come from the constraint, not as somebody's dependency.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no python3 found; install Python 3.11 or newer, or: make PYTHON=/path/to/python3"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	mkdir -p $(VENV)/typing && ln -sfn $(CURDIR) $(VENV)/typing/easyscale
	touch $@

demo: install
	$(BIN)/easyscale run examples/digits.py --workers 3

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p easyscale

# Kernels compute all the time and other tests mostly wait, some of them with deadlines: so one after the other.
test: check
	$(BIN)/easyscale build
	$(BIN)/python -m pytest -n auto --durations=15 --ignore=tests/numerics
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $$(nproc) --durations=15 tests/numerics

# Long runs of the simulation: make simulate SEEDS=100000 FROM=0. It stops at the first seed that fails.
SEEDS ?= 2000
FROM ?= 0
simulate: install
	PYTHONPATH=tests:$$PYTHONPATH $(BIN)/python -m sim --from $(FROM) --seeds $(SEEDS)

# What the policy does in plain stories, written anew after a change that is meant; see docs/development.md.
stories: install
	PYTHONPATH=tests:$$PYTHONPATH $(BIN)/python -m unit.scheduling_stories

# docs/reference.md anew from docstrings and options.
reference: install
	$(BIN)/python docs/reference.py

# Every table is against a named rival, measured in the same run; see docs/benchmarks.md.
bench: install
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/storage.py
	$(BIN)/python benchmarks/storage.py --store seaweedfs --rounds 3
	$(BIN)/python benchmarks/operate.py gc
	$(BIN)/python benchmarks/page.py
	$(BIN)/python benchmarks/restart.py
	$(BIN)/python benchmarks/elastic.py

# Policies on public traces, which are not in the repository.
TRACES ?= ../shared/traces
bench-scheduling: install
	$(BIN)/python benchmarks/scheduling.py --traces $(TRACES)

# Exact kernels against stock PyTorch.
bench-numerics: install
	$(BIN)/python benchmarks/numerics.py

# Every function of one number on all 2^32 of them, against the hashes in the repository: about half an hour.
exhaustive: install
	PYTHONPATH=tests:$$PYTHONPATH $(BIN)/python -m numerics.exhaustive

# A thousand preemptions at random: about an hour.
chaos: install
	$(BIN)/python benchmarks/chaos.py --preemptions 1000 --services etcd

clean:
	rm -rf $(VENV) .easyscale .pytest_cache .mypy_cache .ruff_cache build *.egg-info
