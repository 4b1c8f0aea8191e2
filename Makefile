# Every target sets up what it needs: a virtual environment in .venv with the project installed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help demo fast test faults check docs bench dist page fidelity architectures integrations clean

demo: $(READY)  ## profile the two small models that ship with the package, and write a page to explore them
	$(BIN)/wherewhat demo

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */\1\t/' | expand -t 15

fast: $(READY)  ## the quick tests: no real models, no browser, nothing slow, no shape checks; under a minute
	$(BIN)/pytest -n 2 -o addopts="-q --strict-markers" -m "not slow and not weights and not browser and not integrations"

test: $(READY)  ## all tests, about 20 minutes on two cores
	$(BIN)/pytest -n auto -m "not integrations"

integrations: $(READY)  ## install the packages of other projects that wherewhat works with, and run the tests with them
	$(BIN)/pip install --quiet -c constraints.txt -e '.[integrations]'
	CI=1 $(BIN)/pytest -n 2 -m integrations

faults: $(READY)  ## all injected faults: kills, flipped bytes, a full disk, bad servers, random input; about an hour
	WHEREWHAT_FAULTS=all $(BIN)/pytest -n 2 -o addopts="-q --strict-markers" tests/faults tests/test_executors.py

check: $(READY)  ## linters, type checker, import contracts, plain English
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tools/plain_english.py

docs: $(READY)  ## the documentation site, in build/site/index.html; fails on warnings, broken links and outdated numbers
	$(BIN)/python tools/docs.py

bench: $(READY)  ## benchmarks, written to bench/results.json
	$(BIN)/python -m bench

dist: $(READY)  ## a wheel and a source distribution in dist/
	$(BIN)/python -m build --outdir dist .

page:  ## bundle the script of the explorer from explorer/src; needs node
	cd explorer && npm ci --silent && npm run --silent build

fidelity: $(READY)  ## rewrite docs/fidelity.md from the tables in results; RUNS=FOLDER copies those of finished runs first
	$(BIN)/python tools/fidelity.py $(if $(RUNS),--runs $(RUNS))

architectures: $(READY)  ## measure every model type again and rewrite docs/architectures.md
	$(BIN)/python tools/architectures.py

$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv: about 2 GB, some minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:  ## remove .venv, build and dist
	rm -rf .venv build dist
