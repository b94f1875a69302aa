# make demo   train on real images and print what happened
# make test   set up .venv and run the tests
# make lint   style and types
# make bench  measure speed and memory, as ratios
# make dist   build sdist and wheel into dist/, and try the wheel in an environment with torch alone
# make minimum  the tests with the oldest supported versions (Python 3.10, torch 2.6), in .venv-minimum
# make docs   build the documentation into site/, strictly
PYTHON ?= python3
VENV ?= .venv
OLDEST_PYTHON ?= python3.10
RUN := $(VENV)/bin
# the constraints hold for the build environment too
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# says why; an environment that was made here and never finished goes, for another Python would be used with it
NOT_INSTALLED = { tail -n 25 $(VENV)/install.log; test -e $@ || test ! -e $(VENV)/.made-here || rm -rf $(VENV); exit 1; }

.PHONY: demo test minimum lint bench docs dist figures clean

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "setting up $(VENV): 2 to 4 minutes, once (to watch: tail -f $(VENV)/install.log)"
	test -e $(VENV) || { $(PYTHON) -m venv $(VENV) && touch $(VENV)/.made-here; } || { rm -rf $(VENV); exit 1; }
	$(RUN)/python -m pip install --editable '.[dev]' >$(VENV)/install.log 2>&1 || $(NOT_INSTALLED)
	touch $@

demo: $(VENV)/.installed
	$(RUN)/lookbehind compare --data digits --methods sgd sam asam lookbehind-sam lookbehind-asam --seeds 3 --measures sharpness noise --sigmas 0 0.1 0.2 0.3 0.4 0.5 --draws 3 --out out/demo

# one torch thread per worker, a worker more than there are cores; processes that tests start should find their bytecode
test: $(VENV)/.installed
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(RUN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# old versions of other libraries warn of much, and what needs a newer torch skips itself
minimum:
	test -x .venv-minimum/bin/python || $(OLDEST_PYTHON) -m venv .venv-minimum
	PIP_CONSTRAINT=$(CURDIR)/constraints-minimum.txt .venv-minimum/bin/python -m pip install --quiet --editable '.[test]'
	OMP_NUM_THREADS=1 .venv-minimum/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -W default

lint: $(VENV)/.installed
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

bench: $(VENV)/.installed
	$(RUN)/lookbehind bench

docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict

dist: $(VENV)/.installed
	rm -rf dist
	$(RUN)/python -m build
	$(RUN)/python -m venv dist/empty
	dist/empty/bin/python -m pip install --quiet dist/*.whl
	dist/empty/bin/python tests/installed.py
	rm -rf dist/empty
	ls dist

figures: $(VENV)/.installed
	$(RUN)/python docs/idea.py

# everything that can be made again in minutes; trained runs (out/) and data sets (data/) stay
clean:
	rm -rf $(VENV) .venv-minimum .mypy_cache .pytest_cache .ruff_cache dist site
