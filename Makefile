# make demo | test | check | bench | docs: each makes .venv on first use and installs what it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test check format bench docs clean

demo: $(VENV)/installed
	@$(BIN)/gyroscope demo

test: $(VENV)/installed
	@command -v chromium chromium-browser google-chrome >/dev/null || $(BIN)/playwright install chromium \
		|| echo "No browser could be installed: tests of pages will be skipped."
	$(BIN)/python -m pytest

check: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/installed
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

docs: $(VENV)/installed
	$(BIN)/pdoc gyroscope --math -o docs/api
	@echo "open docs/api/index.html"

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "make: Python 3.11 or newer is needed; \
		say where it is: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) build dist docs/api
