# run    start the hall (installs what is missing first)
# test   the tests that start no hall, minutes; `ARGS=tests/system` and so on for others
# coverage  the same, and how much of the code they run
# check  lint, types and missing migrations, reads only         lint   the first two, mending what it can
# bench  the numbers of bench/README.md                       clean  forget the installation, keep the data
# bench-peers  installs what `bench` measures beside the gateway (FastMCP, mcpo; with npm mcp-proxy, mcp-hub)
# agent  install what agents need (docs/agents.md)        oidc  what single sign-on needs (docs/single-sign-on.md)
# screenshots  the pictures of README and docs, made again (needs Chromium)
# docs   the site of docs/ in .docs/site; a broken link fails it
# attack  a real hall under attack, the honest beside it; `ARGS=--short` in 90 s    fuzz  its parsers (needs atheris)
# storm  a hall under load while all around it is killed; 10 minutes, `ARGS="--seconds 60"` for less
# docker  the shipped image and compose file in real containers, killed and updated (needs Docker; root has it start one);
#         `ARGS=nodes` for docker-compose.nodes.yml
# conformance  what the MCP conformance suite finds in client and gateway; conformance-suite  installs it (needs npm)

VENV ?= .venv
BIN := $(VENV)/bin
SUITE := tests/conformance/node_modules
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# The first of these that is new enough makes the virtual environment.
PYTHONS := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11
NEW := import sys; sys.exit(sys.version_info < (3, 11))

run: $(VENV)/.installed $(BIN)/guildhall
	@exec $(BIN)/python manage.py up

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(or $(ARGS),-q -n logical tests/unit tests/rows)

coverage: $(VENV)/.installed-dev
	$(BIN)/coverage erase && $(BIN)/coverage run -m pytest $(or $(ARGS),-q -n logical tests/unit tests/rows)
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report

check: $(VENV)/.installed-dev
	$(BIN)/python -m ruff check . && $(BIN)/python -m ruff format --check . && $(BIN)/python -m mypy
	@data=$$(mktemp -d) && GUILD_HALL_DATA_DIR=$$data DATABASE_URL= $(BIN)/python manage.py makemigrations --check --dry-run; \
	  code=$$?; rm -rf $$data; exit $$code

lint: $(VENV)/.installed-dev
	$(BIN)/python -m ruff check --fix . && $(BIN)/python -m ruff format . && $(BIN)/python -m mypy

bench: $(VENV)/.installed-dev
	$(BIN)/python -m bench $(ARGS)

bench-peers: $(VENV)/.installed-dev
	$(BIN)/python -m bench peers

conformance: $(VENV)/.installed-dev conformance-suite
	$(BIN)/python -m tests.conformance

attack: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.attack $(ARGS)

storm: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.storm $(ARGS)

docker: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.docker $(ARGS)

fuzz: $(VENV)/.installed-dev
	$(PIP) install -r requirements-fuzz.txt
	@$(BIN)/python -m tests.attack.fuzz $(ARGS)

screenshots: $(VENV)/.installed-dev
	$(BIN)/python -m tests.browser.screenshots

docs: .docs/venv/.installed
	.docs/venv/bin/python -m sphinx -q -W --keep-going docs .docs/site
	@echo "The site is in .docs/site/index.html."

agent: $(VENV)/.installed
	$(PIP) install -r requirements-agent.txt

oidc: $(VENV)/.installed
	$(PIP) install -r requirements-oidc.txt

conformance-suite: $(SUITE)/.package-lock.json

clean:
	rm -rf $(VENV) $(SUITE) bench/.peers .docs

# npm writes this file when it is done.
$(SUITE)/.package-lock.json: tests/conformance/package-lock.json
	cd tests/conformance && npm ci --no-audit --no-fund --loglevel=error

# The command for people. It names this folder, so it is written again when the folder has moved.
$(BIN)/guildhall: $(VENV)/.installed
	@$(BIN)/python -m guildhall.entry_point $@

$(VENV)/.installed: requirements.txt $(VENV)/.python
	$(PIP) install -r requirements.txt
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt requirements-oidc.txt $(VENV)/.installed
	$(PIP) install -r requirements-dev.txt
	@touch $@

# Sphinx has an environment of its own: it is no part of the hall or its tests.
.docs/venv/.installed: requirements-docs.txt $(VENV)/.python
	$(BIN)/python -m venv --clear .docs/venv
	.docs/venv/bin/python -m pip --quiet --disable-pip-version-check install -r requirements-docs.txt
	@touch $@

# An environment that does not work is made anew: it was interrupted, or its Python was replaced since.
ifneq ($(shell $(BIN)/python -c 'import django; print("works")' 2>/dev/null),works)
.PHONY: $(VENV)/.python
endif

$(VENV)/.python:
	@for python in $(PYTHONS); do \
	  if $$python -c '$(NEW)' 2>/dev/null && $$python -c 'import venv, ensurepip' 2>/dev/null; then \
	    echo "Installing into $(VENV) with $$($$python --version). Only this once: it takes a minute."; \
	    if test -e $(VENV)/pyvenv.cfg; then clear=--clear; else clear=; fi; \
	    $$python -m venv $$clear $(VENV) && touch $@; exit; \
	  fi; \
	done; \
	echo "Guild Hall needs Python 3.11 or newer with its venv module."; \
	for python in $(PYTHONS); do \
	  if $$python -c '$(NEW)' 2>/dev/null; then \
	    echo "$$($$python --version) lacks venv. Debian, Ubuntu: sudo apt-get install $$(basename $$python)-venv"; exit 1; \
	  fi; \
	done; \
	echo "Found here: $$(python3 --version 2>/dev/null || echo no python3)."; \
	echo "Debian, Ubuntu: sudo apt-get install python3 python3-venv (older releases: python3.11 python3.11-venv)"; \
	echo "macOS: brew install python    Somewhere else: make run PYTHON=/path/to/python3"; \
	exit 1

.PHONY: $(BIN)/guildhall run test coverage check lint bench bench-peers attack storm docker fuzz screenshots docs agent oidc conformance conformance-suite clean
