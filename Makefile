# `make demo` and `make test` need only Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PROJECTS := pyproject.toml recorder/pyproject.toml
# Python compiles a module when it first loads it: quicker than compiling all that is installed.
EDITABLE := --quiet --no-compile --editable ./recorder

.PHONY: demo test test-services lint clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

demo: $(VENV)/.base
	$(BIN)/firstbad demo

# Everything that needs no service. The fast checks come first.
test: lint
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not service" --cov

# What needs a program from outside the Python environment; a test whose program is missing is skipped and counted.
test-services: $(VENV)/.test
	$(BIN)/python -m pytest -m service

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) dist build htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# A stamp says what is installed. It is older than a changed pyproject.toml or a new interpreter, and then pip runs again.
$(BIN)/python:
	$(PYTHON) -m venv --clear $(VENV)

$(VENV)/.base: $(PROJECTS) $(BIN)/python
	@echo "Installing into $(VENV) (a minute or two the first time)"
	$(PIP) install $(EDITABLE) --editable .
	@touch $@

$(VENV)/.test: $(PROJECTS) constraints.txt $(BIN)/python
	@echo "Installing into $(VENV) (a minute or two the first time)"
	$(PIP) install $(EDITABLE) --editable '.[test]' --constraint constraints.txt
	@touch $(VENV)/.base $@
