# make demo    set up, then optimise and verify ResNet-18's convolutions (under five minutes)
# make test    set up with everything that tests need, then run those that are not slow
# make test-all  all of them, kernels compiled as for users
# make check   format, lint, types, direction of imports
# make fuzz    random networks on every target for an hour (FUZZ_S=600 for ten minutes)
# make docs    the documentation as a site with a search, in build/site/VERSION
# make tables  write the tables of README.md and docs/ again from the JSON in bench/results
# make peers-tvm  set up TVM in an environment of its own, for tilewright bench --against tvm
#
# PYTHON=python3.12 make test chooses the interpreter, VENV=dir the environment. A set-up is done
# again only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV ?= .venv
VENV_TVM ?= .venv-tvm
WORKERS ?= 2
FUZZ_S ?= 3600
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo docs test test-all fuzz check format tables peers-tvm clean

demo: $(VENV)/stamp-demo
	$(BIN)/python -m tilewright_lab demo

# Tests start the package a hundred times: its byte code is kept, whatever the environment says.
test test-all: export PYTHONDONTWRITEBYTECODE =
# Threads of linear algebra wait for work by spinning, on cores that other tests run on.
test test-all: export OPENBLAS_NUM_THREADS = 1
test test-all: export OMP_NUM_THREADS = 1

test: $(VENV)/stamp-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Set, but empty: tests/conftest.py would choose what is built and searched sooner.
test-all: $(VENV)/stamp-test
	TILEWRIGHT_CFLAGS= TILEWRIGHT_JOBS= POCL_EXTRA_BUILD_FLAGS= TILEWRIGHT_CONFORMANCE=all \
	    $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m ''

fuzz: $(VENV)/stamp-test
	$(BIN)/python -m tests.fuzz --graphs 1000000 --seconds $(FUZZ_S) --json build/fuzz.json

check: $(VENV)/stamp-check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(VENV)/stamp-check
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/stamp-test
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo build/site/*/index.html

tables: $(VENV)/stamp-demo
	$(BIN)/python -m tilewright_lab.scripts.tables

peers-tvm: $(VENV_TVM)/stamp-tvm

$(VENV_TVM)/stamp-tvm: constraints-tvm.txt
	$(PYTHON) -m venv $(VENV_TVM)
	$(VENV_TVM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	$(VENV_TVM)/bin/python -c 'import tvm, xgboost; print("TVM", tvm.__version__)'
	touch $@

$(VENV)/stamp-venv:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/stamp-demo: $(VENV)/stamp-venv pyproject.toml constraints.txt
	$(INSTALL) -e '.[bench]'
	touch $@

$(VENV)/stamp-test: $(VENV)/stamp-venv pyproject.toml constraints.txt
	$(INSTALL) -e '.[test,bench,torch,report,cuda,opencl,fleet,docs]'
	touch $@

# Types are checked with every package installed that the product can use.
$(VENV)/stamp-check: $(VENV)/stamp-test
	$(INSTALL) -e '.[check]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV_TVM) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
