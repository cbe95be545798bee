# make run       virtual environment, core install, the main job
# make test      everything installed; lint, types, the test suite, its coverage of the pure packages,
#                and the wheel in a clean environment (at most 10 minutes after installing)
# make test-all  the long tests too
# make bench     every benchmark, and the short form with its ratios to the floor
# make guard     fails if a step has drifted from its floor (ratios, not times)
# make docs      the documentation, build/docs/index.html; warnings are errors
# make wheel-test  builds the wheel and uses it in a clean environment, from another folder
# make paper     the DSpark paper's figures beside the simulator's, reports/dspark_paper
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Installing is silent about what is already there; set PIP_FLAGS= to see it all.
PIP_FLAGS ?= -q --disable-pip-version-check
JOBS ?= 2

.PHONY: run test test-all lint types docs wheel-test bench guard paper schema clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/core.done: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install $(PIP_FLAGS) -e .
	touch $@

$(VENV)/dev.done: $(VENV)/core.done
	$(BIN)/python -m pip install $(PIP_FLAGS) "torch==2.13.0"
	$(BIN)/python -m pip install $(PIP_FLAGS) -e ".[drafter,profiler,cluster,trace,tune,dev]"
	touch $@

run: $(VENV)/core.done
	$(BIN)/specsim run scenarios/flash_120tps.yaml

test: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m "not slow and not cuda" --cov --cov-report=
	$(BIN)/python scripts/coverage_gate.py
	$(BIN)/python scripts/wheel_test.py dist

test-all: $(VENV)/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m "not cuda"

lint: $(VENV)/dev.done
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/dev.done
	$(BIN)/mypy specsim

bench: $(VENV)/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest benchmarks -q --benchmark-columns=median,iqr,ops
	OMP_NUM_THREADS=1 $(BIN)/specsim bench

guard: $(VENV)/dev.done
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/guard.py

docs: $(VENV)/core.done
	$(BIN)/python -m pip install $(PIP_FLAGS) -e ".[docs]"
	$(BIN)/python scripts/write_docs.py --check
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo build/docs/index.html

wheel-test: $(VENV)/core.done
	$(BIN)/python scripts/wheel_test.py dist

paper: $(VENV)/core.done
	$(BIN)/python scripts/report_paper.py --jobs $(JOBS)

schema: $(VENV)/core.done
	$(BIN)/specsim schema > scenarios/scenario.schema.json

clean:
	rm -rf $(VENV) build dist runs .coverage .mypy_cache .ruff_cache .hypothesis
