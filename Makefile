# make demo    set up, then optimise and verify ResNet-18's convolutions (under five minutes)
# make test    set up with everything that tests need, then run them
# make check   format, lint, types, direction of imports
#
# PYTHON=python3.12 make test chooses the interpreter, VENV=dir the environment. A set-up is done
# again only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check format clean

demo: $(VENV)/stamp-demo
	$(BIN)/python -m tilewright.cli.demo

test: $(VENV)/stamp-test
	$(BIN)/python -m pytest -n $(WORKERS)

check: $(VENV)/stamp-check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(VENV)/stamp-check
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/stamp-venv:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/stamp-demo: $(VENV)/stamp-venv pyproject.toml constraints.txt
	$(INSTALL) -e '.[bench]'
	touch $@

$(VENV)/stamp-test: $(VENV)/stamp-venv pyproject.toml constraints.txt
	$(INSTALL) -e '.[test,bench,torch,report]'
	touch $@

$(VENV)/stamp-check: $(VENV)/stamp-venv pyproject.toml constraints.txt
	$(INSTALL) -e '.[check,test]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
