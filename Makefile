# The commands a newcomer needs are `make demo` and `make test`; both install what they need first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINES := $(VENV)/share/tuner/engines
ENGINE := $(ENGINES)/sglang-0.5.16
# Releases whose file rules and kernels the tests check against; each is unpacked, never imported.
TEST_ENGINES := $(foreach v,0.4.3.post2 0.4.4 0.5.2 0.5.12 0.5.16 0.5.23,$(ENGINES)/sglang-$(v)) \
  $(foreach v,0.10.2 0.15.1 0.24.0 0.33.0,$(ENGINES)/vllm-$(v))
# Tritons that compile processes run, beside the installed 3.6.0: releases for which this project has
# other code, and the newest that an engine pins. `make test-all` has each minor release. Not all have
# a wheel for each Python.
TEST_TRITONS := $(foreach v,3.1.0 3.2.0 3.3.1 3.8.0,$(ENGINES)/triton-$(v))
MORE_TRITONS := $(foreach v,3.4.0 3.5.1 3.7.0 3.7.1 3.9.0,$(ENGINES)/triton-$(v))
# With those, a release of each engine for each minor release of Triton that engines pin.
MORE_ENGINES := $(foreach v,0.4.6.post5 0.4.7 0.5.8 0.5.19,$(ENGINES)/sglang-$(v)) \
  $(foreach v,0.8.5 0.10.1.1 0.29.0,$(ENGINES)/vllm-$(v))

.PHONY: install demo docs check lint types imports browser proxy test test-all locks audit chaos clean

install: $(VENV)/.installed $(ENGINE)

$(VENV)/.pip:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	touch $@

# setuptools warns of each editable installation, in nine lines.
$(VENV)/.installed $(VENV)/.installed-dev: export PYTHONWARNINGS := ignore:Editable installation

$(VENV)/.installed: pyproject.toml | $(VENV)/.pip
	@echo 'installing into $(VENV)'
	$(BIN)/python -m pip install --quiet --editable '.[compile]' 'triton==3.6.0'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --group dev --editable '.[api,compile,postgres,service]' 'triton==3.6.0' 'torch==2.13.0'
	touch $@

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

# Only what is read of them. Tritons are targets of their own, because few tests need one.
$(ENGINES)/sglang-% $(ENGINES)/vllm-%: | $(VENV)/.installed
	$(BIN)/tuner list engines --no-triton --add $(subst -,==,$(@F))

$(ENGINES)/triton-%: | $(VENV)/.installed
	-$(BIN)/tuner list engines --add $(subst -,==,$(@F))

demo: install
	$(BIN)/tuner tune deepseek-r1 --tp 32 --dtype int8_w8a8 --no-fuse-shared --device L40S --measure predict
	$(BIN)/tuner export --device L40S --out configs_out --allow-predicted
	$(BIN)/tuner check configs_out/configs/triton_3_6_0/E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True.json \
	  configs_out/configs/triton_3_6_0/E=256,N=64,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True_down.json --device L40S
	@echo "next, for a model and a GPU of yours: $(BIN)/tuner plan qwen3-30b-a3b --device L40S"

# The documentation's site, in build/site: build/site/start.html. A broken link is an error, and so is
# a name of a page or a heading, anywhere in the sources, that is not there.
docs: $(VENV)/.installed-docs
	$(BIN)/python tests/docs_pages.py
	$(BIN)/zensical build --strict --clean

# What to run before a commit: no engine is needed, and two idle cores take less than a minute.
check: lint types imports
	$(BIN)/python -m pytest -m 'not slow' tests/unit

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

imports: $(VENV)/.installed-dev
	$(BIN)/lint-imports

# Tests open the pages in Chromium. Where none can be installed, they say so.
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable
browser:
	@for name in $(BROWSERS); do command -v $$name >/dev/null && exit 0; done; \
	  test -n "$$TUNER_TEST_BROWSER" || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || true

# A test runs the proxy of docker/haproxy.cfg. If it cannot be installed, the test says so.
proxy:
	@command -v haproxy >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends haproxy >/dev/null; } || true

# One case of each kind: what to run on each commit.
test: install $(VENV)/.installed-dev $(TEST_ENGINES) $(TEST_TRITONS) browser
	$(BIN)/python -m pytest -m 'not gpu and not slow'

# Every release, kernel, database and walk: each night, and before a release.
test-all: install $(VENV)/.installed-dev $(TEST_ENGINES) $(MORE_ENGINES) $(TEST_TRITONS) $(MORE_TRITONS) browser proxy
	$(BIN)/python -m pytest -m 'not gpu'

# The packages of the Docker images, by version and hash. What uv and pip-audit need is apart from
# what the tests need.
LOCK := $(VENV)/lock
$(LOCK)/.installed:
	test -x $(LOCK)/bin/python || $(PYTHON) -m venv $(LOCK)
	$(LOCK)/bin/python -m pip install --quiet 'uv>=0.9' 'pip-audit>=2.9'
	touch $@

LOCKED := echo setuptools | $(LOCK)/bin/uv pip compile pyproject.toml - --quiet --upgrade --universal \
  --python-version 3.12 --generate-hashes --no-header --no-annotate --no-emit-index-url
locks: $(LOCK)/.installed
	$(LOCKED) --extra api --extra postgres --extra service --output-file docker/api.lock
	$(LOCKED) --extra compile --extra postgres --extra service --output-file docker/worker-cpu.lock

# Known vulnerabilities of the locked packages, for each night: they become known later. Without an
# answer of the database it fails.
audit: $(LOCK)/.installed
	@for name in api worker-cpu; do \
	  $(LOCK)/bin/pip-audit --strict --require-hashes --disable-pip --requirement docker/$$name.lock || { \
	    echo "audit: docker/$$name.lock is not known to be safe: what pip-audit says above is a package" \
	      "with a known vulnerability, or a database that did not answer" >&2; exit 1; }; \
	done

# About 25 minutes on two cores with PostgreSQL, then some with SQLite. It harms only what it started.
# It fills a disk of its own, which takes root; without: `make chaos CHAOS='--full-disk 0'`. Random
# operations on a queue go on for five minutes; for longer: `make chaos QUEUE='--seconds 3600'`.
chaos: install $(VENV)/.installed-dev
	$(BIN)/python benchmarks/chaos_queue.py $(QUEUE)
	$(BIN)/python benchmarks/chaos.py --json benchmarks/results/chaos.json $(CHAOS)
	$(BIN)/python benchmarks/chaos.py --store sqlite --json benchmarks/results/chaos-sqlite.json

clean:
	rm -rf $(VENV) build dist *.egg-info
