# Two commands matter: `make quickstart` runs PipeCD on this machine, `make test` runs every check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOCK := uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 --quiet
# Tests of whole parts wait for one another half of the time, so that one more than there are cores pays.
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(shell expr $(CORES) + 1)
# Without bytecode every run would prepare the assertions of all tests anew, and every program compile itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test testbed again test-fast check types lint conventions format proto lock bench clean

quickstart: $(VENV)/.run
	@$(BIN)/pipecd quickstart $(ARGS)

# Everything: what `.ci/run` calls.
test: check
	@tools/test_packages.sh
	@$(MAKE) --no-print-directory testbed || echo "tests without their program are skipped, in CI they fail"
	$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup --ignore tests/conventions || $(MAKE) --no-print-directory again

# Makes the programs that tests run against, once; PIPECD_TESTBED_SKIP names those to leave out.
testbed: $(VENV)/.dev
	@$(BIN)/python tools/testbed/testbed.py

# Real servers and browsers share two cores with the rest: what failed is tried once more, alone.
again:
	$(BIN)/pytest -q --last-failed --last-failed-no-failures none --ignore tests/conventions

# What to run while writing: no browser, nothing slow.
test-fast: $(VENV)/.dev
	$(BIN)/pytest -q -n $(CORES) --dist loadgroup -m "not slow and not browser" --ignore tests/conventions

# Format, lint, types, import contracts and the conventions, side by side: every failure is reported.
check: $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs --keep-going --output-sync=target types lint conventions

types: $(VENV)/.dev
	$(BIN)/basedpyright --level error

lint: $(VENV)/.dev
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .

conventions: $(VENV)/.dev
	$(BIN)/pytest -q tests/conventions

format: $(VENV)/.dev
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

# Generates the Python code of the .proto files.
proto: $(VENV)/.dev
	$(BIN)/python tools/regenerate_proto.py

bench: $(VENV)/.dev
	@for program in bench/*.py; do echo "== $$program"; $(BIN)/python $$program || exit 1; done

# Locks the dependencies anew; needs uv.
lock:
	$(LOCK) requirements/build.in -o requirements/build.txt
	$(LOCK) --extra controlplane pyproject.toml -o requirements/run.txt
	$(LOCK) --all-extras -c requirements/run.txt pyproject.toml -o requirements/full.txt
	$(LOCK) -c requirements/full.txt requirements/dev.in -o requirements/dev.txt

clean:
	rm -rf $(VENV)

$(VENV)/.run: requirements/build.txt requirements/run.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "PipeCD needs Python 3.11 or newer: install it, or name one with make PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "PipeCD needs Python 3.11 or newer; name one with make PYTHON=…")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV), once"
	@$(PIP) install --require-hashes -r requirements/build.txt -r requirements/run.txt
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/full.txt requirements/dev.txt
	@$(PIP) install --require-hashes -r requirements/full.txt -r requirements/dev.txt
	@touch $@
