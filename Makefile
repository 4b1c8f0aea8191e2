# Every target sets up what it needs: a virtual environment in .venv with the project installed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check bench dist page architectures clean

demo: $(READY)
	$(BIN)/wherewhat demo

test: $(READY)
	$(BIN)/pytest -n auto

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m bench

dist: $(READY)
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

# The script of the explorer, bundled from explorer/src; needs node.
page:
	cd explorer && npm ci --silent && npm run --silent build

architectures: $(READY)
	$(BIN)/python tools/architectures.py

$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv: about 2 GB, some minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv build dist
