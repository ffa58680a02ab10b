# Every target installs what it needs into an environment of its own below the cache; nothing else is touched.
PYTHON ?= python3
CACHE := $(or $(ROLLOUTLOG_CACHE),$(HOME)/.cache/rolloutlog)
SEED ?= 0
# Most tests wait for processes and brokers: two at a time take half as long on two cores.
# tests/verl has an environment of its own, and a target of its own that says when it is left out.
SHARED := --numprocesses 2 --dist loadfile --ignore tests/verl

# An environment belongs to one checkout (it holds an editable install) and one set of pins.
KEY := $(shell { pwd; cat deploy/requirements.txt tests/requirements.txt pyproject.toml; } | cksum | tr ' ' '-')
RUN := $(CACHE)/env/run-$(KEY)
DEV := $(CACHE)/env/dev-$(KEY)
VERL := $(CACHE)/env/verl-$(shell { pwd; cat tests/requirements-verl.txt pyproject.toml; } | cksum | tr ' ' '-')

.DEFAULT_GOAL := help
.PHONY: help demo demo-kafka test test-all test-verl check sim bench format clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 18

demo: $(RUN)/ready  ## an agent that learns: two rollout hosts, an assembler and a trainer, on an embedded log
	@$(RUN)/bin/rolloutlog demo

demo-kafka: $(RUN)/ready  ## the same on Apache Kafka, which it starts; needs Java 17, the first time Maven
	@$(RUN)/bin/rolloutlog demo --kafka

test: $(DEV)/ready  ## tests of every layer, on SQLite and on Apache Kafka
	$(DEV)/bin/python -m pytest $(SHARED) -m "not slow" tests

test-all: $(DEV)/ready  ## all tests, those with many kills and seeds too
	$(DEV)/bin/python -m pytest $(SHARED) tests
	@if [ -e $(VERL)/ready ]; then $(MAKE) --no-print-directory test-verl; \
	else echo "SKIPPED: tests/verl, with the real torch and verl, which are gigabytes to download; make test-verl runs it"; fi

test-verl: $(VERL)/ready  ## tests of the adapters with the real torch and verl; downloads some 3 GB the first time
	$(VERL)/bin/python -m pytest tests/verl tests/unit/consumers/adapters

check: $(DEV)/ready  ## format, lint, types, and the tests that need no broker
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/ruff check .
	$(DEV)/bin/mypy
	$(DEV)/bin/python -m pytest -q -m "not slow and not kafka" tests/unit tests/log

sim: $(DEV)/ready  ## 5,000 random logs with restarts against one uninterrupted pass, from SEED on
	SEED=$(SEED) $(DEV)/bin/python -m pytest -q -s -m slow tests/unit/consumers/test_fold_model.py

bench: $(DEV)/ready  ## figures, ours and others side by side, with their ratios; takes minutes
	@for script in tests/benchmarks/*.py; do \
		python=$(DEV)/bin/python; \
		if [ $$script = tests/benchmarks/to_verl.py ]; then python=$(VERL)/bin/python; fi; \
		echo "== $$script"; \
		if [ -x $$python ]; then PYTHONPATH=tests $$python $$script || exit 1; \
		else echo "SKIPPED: it needs the environment that make test-verl makes"; fi; \
	done

format: $(DEV)/ready  ## format the code
	$(DEV)/bin/ruff format .
	$(DEV)/bin/ruff check --fix .

clean:  ## remove this checkout's environments from the cache
	rm -rf $(RUN) $(DEV) $(VERL)

# $(call environment,folder,requirements): a virtual environment with pinned versions and this checkout.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, found %d.%d: set PYTHON=" % sys.version_info[:2])'
	@echo "installing into $(1)"
	@rm -rf $(1)
	@$(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check -r $(2) "setuptools>=77" wheel
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(1)/ready
endef

# torch brings what belongs to its build, CUDA or CPU; verl asks for much that the adapters' tests never load.
$(VERL)/ready:
	@echo "installing into $(VERL)"
	@rm -rf $(VERL)
	@$(PYTHON) -m venv $(VERL)
	@$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check $(shell grep ^torch== tests/requirements-verl.txt) "setuptools>=77" wheel
	@$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/requirements-verl.txt
	@$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(VERL)/ready

$(RUN)/ready:
	$(call environment,$(RUN),deploy/requirements.txt)

$(DEV)/ready:
	$(call environment,$(DEV),tests/requirements.txt)
