# uv installs all packages into .venv, in a fifth of the time that pip needs. If uv is not installed, it is first installed into .venv. If uv
# fails, for example because it does not read pip's configuration, pip installs the packages.

UV := $(shell command -v uv 2>/dev/null)

# Prefers the Python of the distribution, which is compiled with profile-guided optimization: the tests take a seventh less time.
PYTHON := $(shell for python in /usr/bin/python3.11 python3.11 python3; do \
	$$python -c 'import $(if $(UV),,ensurepip; import )sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)

ifdef UV
MAKE_VENV = uv venv -q --python $(PYTHON) .venv
INSTALL = uv pip install -q --python .venv/bin/python
else
PIP = .venv/bin/python -m pip install -q --disable-pip-version-check
MAKE_VENV = $(PYTHON) -m venv .venv && $(PIP) uv
INSTALL = install() { .venv/bin/uv pip install -q --python .venv/bin/python "$$@" || { echo "make: uv failed. Trying again with pip."; $(PIP) "$$@"; }; }; install
endif

# One process more than there are cores, because tests also wait. More processes are not faster. Bytecode is always written, because otherwise
# each program that a test starts would compile the modules again.
PROCESSES = $(shell $(PYTHON) -c 'import os; print(min(4, len(os.sched_getaffinity(0)) + 1))')
PYTHON_OF_TESTS = PYTHONDONTWRITEBYTECODE= .venv/bin/python -m
RUN_TESTS = pytest --numprocesses=$(PROCESSES) --dist=loadgroup --no-loadscope-reorder --max-worker-restart=0
PYTEST = $(PYTHON_OF_TESTS) $(RUN_TESTS)

# The tests and the documentation use the versions that deploy/ pins.
CONSTRAINTS_test = -c deploy/constraints.txt
CONSTRAINTS_docs = -c deploy/constraints.txt

.PHONY: help demo test test-fast test-images test-lowest coverage docs clean

help:
	@echo "make demo        prepare a dataset from real images, and show how a global shuffle improves training"
	@echo "make test        run all tests"
	@echo "make test-fast   run the tests that take less than a second each"
	@echo "make test-images build and run the images of deploy/ on stand-ins for their base images; needs root, buildah, mmdebstrap and Go"
	@echo "make test-lowest test each extra with the lowest versions that pyproject.toml declares; takes 10 minutes"
	@echo "make coverage    run all tests, or those in TESTS=tests/shuffle, and list the lines and branches that they do not reach"
	@echo "make docs        build the documentation site in site/"
	@echo "make clean       delete all files that make created, including .venv"

demo: $(or $(wildcard .venv/test.stamp),.venv/demo.stamp)
	.venv/bin/python deploy/demo/demo.py

test: .venv/test.stamp
	@PYTHONPATH=. .venv/bin/python tests/engines.py
	$(PYTEST)

test-fast: .venv/test.stamp
	$(PYTEST) -m "not slow"

test-images: .venv/test.stamp
	RECORDMILL_TEST_IMAGES=1 .venv/bin/python -m pytest tests/deploy/test_image_builds.py

test-lowest: .venv/test.stamp
	@test -e .venv/bin/uv || .venv/bin/python -m pip install -q uv
	RECORDMILL_TEST_LOWEST=1 .venv/bin/python -m pytest tests/project/test_lowest_versions.py

coverage: .venv/test.stamp
	.venv/bin/python -m coverage erase
	$(PYTHON_OF_TESTS) coverage run -m $(RUN_TESTS) $(TESTS)
	.venv/bin/python -m coverage combine -q
	.venv/bin/python -m coverage report

docs: $(or $(wildcard .venv/test.stamp),.venv/docs.stamp)
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build

# The stamp file is written last. If no stamp exists, .venv is missing or incomplete, and is created again.
.venv/%.stamp: pyproject.toml setup.py deploy/constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no suitable Python found. Install Python 3.11 or later as python3.11 or python3, and uv or its module venv." >&2; exit 1; }
	@echo "Installing recordmill[$*] into .venv. The first time takes some minutes."
	@$(if $(wildcard .venv/*.stamp),,rm -rf .venv && $(MAKE_VENV))
	@rm -f .venv/*.stamp
	@$(INSTALL) -e '.[$*]' $(CONSTRAINTS_$*)
	@touch $@

clean:
	rm -rf .venv build dist demo-out site *.egg-info .pytest_cache .hypothesis .coverage*
	find . -name __pycache__ -prune -exec rm -rf {} +
