# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv first; nothing outside this folder is touched.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-cache-dir --quiet
export MPLCONFIGDIR := $(CURDIR)/.venv/matplotlib
# One test a core, and one thread a test.
export OMP_NUM_THREADS := 1
export NO_MKDOCS_2_WARNING := 1
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

.PHONY: demo test test-machines test-versions test-long golden golden-update results-status check format docs docs-serve gates release-check clean

demo: .venv/.demo
	$(BIN)/infhess demo --out runs/demo

test: .venv/.dev
	$(PYTEST)

test-long: .venv/.dev
	$(PYTEST) -m long

# Whether anything has changed in what is computed: short runs of everything, by hashes. To change it, raise the version of the
# rule in src/infhess/_rules.py.
golden: .venv/.dev
	$(BIN)/python tools/golden.py

golden-update: .venv/.dev
	$(BIN)/python tools/golden.py --update

# Which committed rows of results an older version of a rule has computed.
results-status: .venv/.dev
	$(BIN)/python tools/results_status.py

# The numerical part as older processors and two threads compute it.
test-machines: .venv/.dev
	$(BIN)/python tools/machines.py

# The oldest and the newest Python and packages that pyproject.toml admits; downloads them.
test-versions: .venv/.dev
	$(BIN)/python tools/versions.py

check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "infhess needs Python 3.10 or newer: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.demo: pyproject.toml | .venv/bin/python
	$(PIP) install -e '.[demo]'
	@touch $@

.venv/.dev: pyproject.toml benchmarks/pyproject.toml | .venv/bin/python
	$(PIP) install -e '.[dev]' -e benchmarks
	$(PIP) install --no-deps curvlinops-for-pytorch==3.0.1 backpack-for-pytorch==1.7.1
	@touch $@ .venv/.demo

docs: .venv/.docs
	$(BIN)/mkdocs build --strict
	$(BIN)/python tools/links.py runs/site
	$(BIN)/python -m pytest -m site tests/test_site.py

# Breaks what each check guards, in a copy, and asks the check to see it: some minutes.
gates: .venv/.docs
	$(BIN)/python tools/gates.py

docs-serve: .venv/.docs
	INFHESS_GALLERY=kept $(BIN)/mkdocs serve

.venv/.docs: .venv/.dev
	$(PIP) install -e '.[docs]'
	@touch $@

# Installs everything twice, from the package index; RELEASE_CHECK=--borrow takes torch and the like from .venv.
release-check: .venv/.demo
	$(PIP) install build twine
	$(BIN)/python tools/release_check.py $(RELEASE_CHECK)

clean:
	rm -rf .venv runs .mypy_cache .ruff_cache .pytest_cache
