# Everything is installed into .venv by uv, in a fifth of the time that pip takes: by the uv that there is, else by one in .venv. Where that
# can't, as it reads no settings of pip, pip does.

UV := $(shell command -v uv 2>/dev/null)

# The system's own Python first: distributions compile it with profiles, which takes a seventh off the tests.
PYTHON := $(shell for python in /usr/bin/python3.11 python3.11 python3; do \
	$$python -c 'import $(if $(UV),,ensurepip; import )sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)

ifdef UV
MAKE_VENV = uv venv -q --python $(PYTHON) .venv
INSTALL = uv pip install -q --python .venv/bin/python
else
PIP = .venv/bin/python -m pip install -q --disable-pip-version-check
MAKE_VENV = $(PYTHON) -m venv .venv && $(PIP) uv
INSTALL = install() { .venv/bin/uv pip install -q --python .venv/bin/python "$$@" || { echo "make: uv failed; once more, with pip"; $(PIP) "$$@"; }; }; install
endif

# A process more than there are cores, since tests wait too; another one gains nothing. Bytecode is kept, whatever the environment says: each
# program that a test starts would compile it anew.
PROCESSES = $(shell $(PYTHON) -c 'import os; print(min(4, len(os.sched_getaffinity(0)) + 1))')
PYTHON_OF_TESTS = PYTHONDONTWRITEBYTECODE= .venv/bin/python -m
RUN_TESTS = pytest --numprocesses=$(PROCESSES) --dist=loadgroup --no-loadscope-reorder --max-worker-restart=0
PYTEST = $(PYTHON_OF_TESTS) $(RUN_TESTS)

# The tests run with the versions that deploy/ pins, and the site is built with them.
CONSTRAINTS_test = -c deploy/constraints.txt
CONSTRAINTS_docs = -c deploy/constraints.txt

.PHONY: help demo test test-fast test-images test-lowest coverage docs clean

help:
	@echo "make demo        the main job on real images, and what a global shuffle does for training"
	@echo "make test        all tests"
	@echo "make test-fast   those that take no seconds each: for each change"
	@echo "make test-images builds the images of deploy/ on stand-ins for their bases, and runs them; needs root, buildah, mmdebstrap and Go"
	@echo "make test-lowest uses each extra with the lowest versions that pyproject.toml declares; takes 10 minutes"
	@echo "make coverage    lines and branches of both packages that tests do not reach: of all tests, or of TESTS=tests/shuffle"
	@echo "make docs        the documentation as a site, in site/"
	@echo "make clean       remove what these made, .venv too"

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

# A stamp is made last, so without one .venv is new or what an interrupted install left: start afresh.
.venv/%.stamp: pyproject.toml setup.py deploy/constraints.txt
	@test -n "$(PYTHON)" || { echo "make: needs Python 3.11 or later as python3.11 or python3, and its module venv where there is no uv; found neither" >&2; exit 1; }
	@echo "Installing recordmill[$*] into .venv; the first time takes some minutes"
	@$(if $(wildcard .venv/*.stamp),,rm -rf .venv && $(MAKE_VENV))
	@rm -f .venv/*.stamp
	@$(INSTALL) -e '.[$*]' $(CONSTRAINTS_$*)
	@touch $@

clean:
	rm -rf .venv build dist demo-out site *.egg-info .pytest_cache .hypothesis .coverage*
	find . -name __pycache__ -prune -exec rm -rf {} +
