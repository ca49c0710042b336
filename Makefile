# make demo | quick | test | coverage | check | stacks | matrix | bench | docs | docs-serve | notebooks: each makes .venv on first use and installs what it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
# Any of these drives the tests of pages; without one, Playwright's own chromium is downloaded.
BROWSER := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

.PHONY: demo quick test browser coverage check format stacks matrix bench docs docs-serve notebooks clean

demo: $(VENV)/installed
	@$(BIN)/gyroscope demo

# The loop while writing: one process per core, a file to a process, so that what a file trains once is trained once.
quick: $(VENV)/installed
	$(BIN)/python -m pytest -m "not slow and not compile and not browser and not distributed" -n auto --dist loadfile

# Tests move to an idle process at the end, so that the longest files do not leave a core without work.
test: $(VENV)/installed browser
	$(BIN)/python -m pytest -n auto --dist worksteal

browser: $(VENV)/installed
	@test -n "$(BROWSER)" || $(BIN)/playwright install chromium >/dev/null 2>&1 \
		|| echo "No browser could be installed: tests of pages will be skipped."

# Slower than `make test`: every line is counted. Ends with an error below the share that pyproject.toml asks for.
coverage: $(VENV)/installed browser
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage report

check: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	tools/javascript/check

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The optimizers of other libraries against their rules, in an environment that also sees what .venv has.
SITE := import site; print(site.getsitepackages()[0])
stacks: $(VENV)/installed
	$(PYTHON) -m venv .stacks
	$(BIN)/python -c "$(SITE)" > "$$(.stacks/bin/python -c "$(SITE)")/venv.pth"
	.stacks/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[stacks]"
	PYTHONPATH=.:lab .stacks/bin/python -W ignore -m tests.optimizers.measure_stacks
	PYTHONPATH=. $(BIN)/python tools/support_table.py

matrix:
	tools/matrix

bench: $(VENV)/installed
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

# A broken link is an error. The pages open from the folder, without a server or a network.
docs: $(VENV)/installed
	PYTHONPATH=. $(BIN)/python -m tools.site

docs-serve: $(VENV)/installed
	PYTHONPATH=. $(BIN)/python -m tools.site --serve

# The tutorials, which take minutes. `python -m tools.tutorials` also keeps what they print.
notebooks: $(VENV)/installed
	PYTHONPATH=. $(BIN)/python -m tools.tutorials --check

$(VENV)/installed: pyproject.toml lab/pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "make: Python 3.11 or newer is needed; \
		say where it is: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# The library first and alone: pip looks for what the lab needs among what is installed, or in an index.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable "./lab[ray]" --editable ".[dev]"
	@# timm alone: the torchvision that it would bring may not load, and transformers then fails. What else it needs is here.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps timm
	@touch $@

clean:
	rm -rf $(VENV) .matrix .stacks build dist
