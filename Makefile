# make setup   a virtual environment in .venv with everything pinned by constraints.txt; and bubblewrap,
#              which runs the programs of kind `code`, where it is missing and can be installed (as root, with apt)
# make serve   set up, then start the server on SQLite at http://127.0.0.1:8080
# make test    set up, then lint, type check, import contracts and tests
# make bench   the benchmarks
# make sandbox-image   the image of the sandboxes' Docker backend (needs a Docker daemon)
# make docs    build the documentation into site/

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TESTS ?= tests
PYTEST_WORKERS ?= 4

.PHONY: setup serve test lint types imports pytest bench docs format clean sandbox-image

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (PYTHON=python3.12 make setup)"; exit 1; }
	@echo "Installing into $(VENV): reward-server with the extras server, postgres, dev (pinned by constraints.txt)"
	@$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[server,postgres,dev]'
	@./.ci/sandbox-packages
	@touch $@

serve: setup
	$(BIN)/reward-server serve

test: lint types imports pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

pytest: setup
	$(BIN)/pytest -n $(PYTEST_WORKERS) $(TESTS)

bench: setup
	$(BIN)/python -m benchmarks.http_score
	$(BIN)/python -m benchmarks.answer
	$(BIN)/python -m benchmarks.code
	$(BIN)/python -m benchmarks.python_grader
	$(BIN)/python -m benchmarks.lean
	@docker image inspect reward-sandbox >/dev/null 2>&1 && $(BIN)/python -m benchmarks.docker || echo "benchmarks.docker: skipped, needs a daemon and make sandbox-image"
	$(BIN)/python -m benchmarks.sandbox_soak --minutes 10
	$(BIN)/python -m benchmarks.soak

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

sandbox-image:
	docker build --network host --tag reward-sandbox sandboxes/image

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) site build dist *.egg-info
