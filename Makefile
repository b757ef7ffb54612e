# Two commands matter: `make quickstart` runs PipeCD on this machine, `make test` runs every check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest -q --ignore tests/conventions
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOCK := uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 --quiet
# Tests of whole programs spend half of their time waiting, so one worker more than there are cores pays off.
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(shell expr $(CORES) + 1)
# Without bytecode every run would rewrite the assertions of all tests, and every program compile itself.
unexport PYTHONDONTWRITEBYTECODE
# An upgrade of the system may remove the Python of the environment, which is then created anew.
$(shell test -x $(BIN)/python || rm -f $(VENV)/.run)

.PHONY: quickstart test test-long packages testbed again test-fast fuzz faults pictures check types lint conventions format proto dist docs lock bench clean

quickstart: $(VENV)/.run
	@$(BIN)/pipecd quickstart $(ARGS)

# Everything that belongs into every run: what `.ci/run` calls.
test: check packages
	@$(MAKE) --no-print-directory testbed || echo "tests without their program are skipped, in CI they fail"
	$(PYTEST) -n $(WORKERS) --dist loadgroup --durations 25 -m "not long" || $(MAKE) --no-print-directory again

# What takes too long for every run: long fuzzing and soak tests, and the console in Firefox.
test-long: $(VENV)/.dev testbed
	@tools/test_packages.sh long
	$(PYTEST) -n $(WORKERS) --dist loadgroup --durations 25 -m long

# Installs the system packages that tests need, if this user may.
packages:
	@tools/test_packages.sh

# Builds the programs that tests run against, once; PIPECD_TESTBED_SKIP names those to leave out.
testbed: $(VENV)/.dev
	@$(BIN)/python tools/testbed/testbed.py

# Real servers and browsers share two cores with the rest: what failed is repeated once, alone. A test
# that passes then is reported as flaky and added to build/flaky.txt.
again:
	PIPECD_TESTS_REPEATED=1 $(PYTEST) --last-failed --last-failed-no-failures none -m "not long"

# Fuzzes every endpoint and reader for SECONDS; a finding is printed with the command that repeats it.
SECONDS ?= 60
fuzz: $(VENV)/.dev
	@PYTHONPATH=tests $(BIN)/python -m fuzz.campaign --seconds $(SECONDS) $(if $(TARGET),--target "$(TARGET)") \
		$(if $(SEED),--seed $(SEED)) $(if $(INPUT),--input $(INPUT))

# Breaks whole installations of every layout at random for MINUTES; see docs/reliability.md.
MINUTES ?= 6
faults: $(VENV)/.dev
	@PYTHONPATH=tests $(BIN)/python -m faults.campaign --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Every page of the console as a picture, in both themes, wide and on a phone, with what follows from
# actions, signing in, and the operator pages: build/pictures.
pictures: $(VENV)/.dev
	@PIPECD_PICTURES=build/pictures $(PYTEST) -n $(CORES) tests/controlplane/console/browser/test_pictures.py \
		tests/controlplane/console/browser/test_settings_pictures.py

# What to run while writing: no browser, nothing slow.
test-fast: $(VENV)/.dev
	$(PYTEST) -n $(CORES) --dist loadgroup -m "not slow and not browser and not long"

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

# Builds a release of HEAD into dist/: wheel, source archive, executables, images, SBOM and checksums.
dist: $(VENV)/.dev
	@$(BIN)/python tools/dist.py $(ARGS)

# Builds the documentation site into build/docs/site; a broken link is an error.
docs: $(VENV)/.dev
	@$(BIN)/python tools/site/build.py

# Locks the dependencies; needs uv.
lock:
	$(LOCK) requirements/build.in -o requirements/build.txt
	$(LOCK) pyproject.toml -o requirements/run.txt
	$(LOCK) --all-extras -c requirements/run.txt pyproject.toml -o requirements/full.txt
	$(LOCK) -c requirements/full.txt requirements/dev.in -o requirements/dev.txt

clean:
	rm -rf $(VENV)

$(VENV)/.run: requirements/build.txt requirements/run.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "PipeCD needs Python 3.11 or newer: install it, or name one with make PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "PipeCD needs Python 3.11 or newer; name one with make PYTHON=…")'
	@# Without pip the directory is what an interrupted run left, or its Python is gone.
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing into $(VENV), once"
	@$(PIP) install --no-deps --require-hashes -r requirements/build.txt -r requirements/run.txt
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/full.txt requirements/dev.txt
	@$(PIP) install --no-deps --require-hashes -r requirements/full.txt -r requirements/dev.txt
	@touch $@
