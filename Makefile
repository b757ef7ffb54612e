# Two commands matter: `make quickstart` runs PipeCD on this machine, `make test` runs every check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: quickstart test test-fast check format proto lock bench clean

$(VENV)/.run: requirements/build.txt requirements/run.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "PipeCD needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once)"
	@$(PIP) install --require-hashes -r requirements/build.txt -r requirements/run.txt
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@

quickstart: $(VENV)/.run
	@$(BIN)/pipecd quickstart $(ARGS)

proto: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/regenerate_proto.py

lock:
	uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 requirements/build.in -o requirements/build.txt
	uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 --extra controlplane pyproject.toml -o requirements/run.txt
	uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 -c requirements/run.txt requirements/dev.in -o requirements/dev.txt
