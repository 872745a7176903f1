# make demo   install, then run all three jobs on generated rollouts
# make test   install, then run all checks and tests
# make docs   build the documentation and check it
# make chaos  kill, damage and interrupt for MINUTES=10, with SEED=1 as in that run
# make gpu    check the GPU: probe, tests, benchmark, sanitizers
PYTHON ?= python3
VENV ?= .venv
# One more than the cores: many tests wait for disks, timeouts and other processes.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
BIN := $(VENV)/bin
# Else every process of the tests would compile all modules that it imports.
export PYTHONDONTWRITEBYTECODE :=

# Tests compare with OGBench's functions. The simulators that it depends on are heavy, and not needed for that.
# The newest mlflow-skinny wants an older importlib_metadata than other packages; it works with the new one.
INSTALL_ALONE := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -c constraints.txt

.PHONY: demo test lint docs site chaos gpu clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed-train
	$(BIN)/gear-data demo --out demo-output

test: $(VENV)/installed-test lint site
	@if [ -n "$$GEAR_DATA_REQUIRE_VERBS" ]; then $(BIN)/python tests/support/rdma/image.py; fi
	@if [ -n "$$GEAR_DATA_REQUIRE_BROWSER" ]; then $(BIN)/python tests/support/browser/chromium.py; fi
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart 0

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Builds the site in site/, and tests its examples and names.
docs: site
	$(BIN)/python -m pytest -q tests/docs

site: $(VENV)/installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

MINUTES ?= 10
chaos: $(VENV)/installed-test
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

gpu:
	PYTHON=$(PYTHON) scripts/gpu_check.sh

# One stamp file per set of extras, so that `make demo` does not install packages that only the tests need.
$(VENV)/installed-%: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[$*]'
	$(if $(filter test,$*),$(INSTALL_ALONE) ogbench mlflow-skinny)
	@touch $@

# The pip of Python 3.11 takes minutes to resolve the dependencies; pip 25 does not.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "The venv module is missing (Debian, Ubuntu: apt-get install python3-venv)"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25'

clean:
	rm -rf $(VENV) .venv-gpu gear-data-gpu.tar.xz gpu-results demo-output site build *.egg-info
