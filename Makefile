# make demo   install, then run all three jobs on generated rollouts
# make test   install, then run ruff, mypy and the tests that start no process: minutes, after each change
# make test-all      also the documentation, processes, clusters, the browser, QEMU guests, benchmarks, fuzzing
# make test-nightly  also an hour of chaos, the oldest and newest dependencies, other Pythons, LeRobot in one environment with us,
#                    servers of Google Cloud Storage and Azure
# make coverage      branch coverage of the packages by the tests of `make test-all`
# make docs   build the documentation and check it
# make chaos  kill, damage and interrupt for MINUTES=10, with SEED=1 as in that run
# make dist   build wheel and sdist twice, compare and check them, install the wheel and run the demo
# make release  write the changelog's section of the version, do the same, and tag the commit
# make gpu    check the GPU: probe, tests, benchmark, sanitizers
PYTHON ?= python3
VENV ?= .venv
# Versions that the tests were last run with.
CONSTRAINTS ?= constraints.txt
# LOCKED=1 installs only files whose hashes stand in hashes.txt. The workflows in .github do.
LOCKED ?=
# One more than the cores: many tests wait for disks, timeouts and other processes.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
BIN := $(VENV)/bin
# Else every process of the tests would compile all modules that it imports.
export PYTHONDONTWRITEBYTECODE :=

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL := $(PIP_INSTALL) --no-compile $(if $(LOCKED),--require-hashes -c hashes.txt,-c $(CONSTRAINTS))
# Tests compare with OGBench's functions. The simulators that it depends on are heavy, and not needed for that.
# The newest mlflow-skinny wants an older importlib_metadata than other packages; it works with the new one.
ALONE := ogbench mlflow-skinny
INSTALL_ALONE := $(INSTALL) --no-deps
# Tests compare with torchvision's functions (tests/support/feed/torchvision_pixels.py). It is not on Python's path: beside torch for CPUs
# the index's torchvision fails at import, and packages that find it import it.
BESIDE := $(VENV)/beside

# One module's tests stay in one process: they share its fixtures. Modules keep the order of tests/conftest.py.
PYTEST_OPTIONS := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
PYTEST := $(BIN)/python -m pytest $(PYTEST_OPTIONS)
# Pythons beside that of $(PYTHON).
PYTHONS ?= 3.12 3.13 3.14
OTHER_PYTHONS := $(PYTHONS:%=test-python%)
FIRST_TIER := 'not processes and not nightly'

.PHONY: demo test test-all test-nightly test-oldest test-newest test-lerobot test-lerobot-old test-clouds test-pythons test-slow test-chaos $(OTHER_PYTHONS) coverage first-tier both-tiers lint docs site chaos dist release lock gpu clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed-train
	$(BIN)/gear-data demo --out demo-output

# The tests compile kernels at first, in one process, while mypy runs in another.
test: $(VENV)/installed-test
	$(MAKE) -j 2 lint first-tier

first-tier: $(VENV)/installed-test
	$(PYTEST) -m $(FIRST_TIER)

test-all: $(VENV)/installed-test
	$(MAKE) -j 2 lint both-tiers

both-tiers: site
	@if [ -n "$$GEAR_DATA_REQUIRE_VERBS" ]; then $(BIN)/python tests/support/rdma/image.py; fi
	@if [ -n "$$GEAR_DATA_REQUIRE_BROWSER" ]; then $(BIN)/python tests/support/browser/chromium.py; fi
	$(PYTEST) -m 'not nightly'

# `make -k` goes on to the next after one failed.
test-nightly: test-oldest test-newest test-pythons test-lerobot test-lerobot-old test-clouds test-slow test-chaos

test-slow: $(VENV)/installed-test
	$(PYTEST) -m nightly

test-chaos:
	$(MAKE) chaos MINUTES=60

# Each makes its own environment again. Hashes are of the versions in constraints.txt.
test-newest:
	rm -rf .venv-newest
	$(MAKE) first-tier VENV=.venv-newest CONSTRAINTS=/dev/null LOCKED=

test-oldest: PACKAGES := --resolution lowest-direct -e '.[hdf5,images,torch,video,zarr,report,s3,metrics,tls]'
# The tests of other folders need packages that have no versions for these.
test-oldest: TESTS := -m $(FIRST_TIER) tests/collection tests/kernels tests/residency tests/storage tests/video
# One environment for both. LeRobot's versions after 0.4.4 need PYTHON=python3.12.
test-lerobot: PACKAGES := -e '.[hdf5,images,torch,video,report]' 'lerobot[dataset,training,diffusion]>=0.4.4'
test-lerobot-old: PACKAGES := -e '.[hdf5,images,torch,video,report]' 'lerobot[dataset,training]==0.4.4'
test-lerobot test-lerobot-old: TESTS := tests/exports/lerobot tests/ingest/sources/lerobot tests/integrations/lerobot \
  tests/video/test_depth.py
# Servers of Google Cloud Storage and of Azure on this machine. npm installs the second.
test-clouds: PACKAGES := -e '.[hdf5,images,torch,video]' gcsfs adlfs gcp-storage-emulator
test-clouds: TESTS := tests/ingest/cached/test_clouds.py
test-clouds: export PATH := $(CURDIR)/.azurite/node_modules/.bin:$(PATH)
test-clouds: .azurite
.azurite:
	npm install --prefix $@ --no-audit --no-fund azurite
# Those of the other Pythons that this machine has.
test-pythons:
	for version in $(PYTHONS); do \
	  if python$$version -c '' 2>/dev/null; then $(MAKE) test-python$$version PYTHON=python$$version || exit 1; fi; \
	done

$(OTHER_PYTHONS): PACKAGES := -e '.[hdf5,images,torch,video,zarr,report,s3,metrics,tls]'
$(OTHER_PYTHONS): TESTS := -m $(FIRST_TIER) tests/collection tests/kernels tests/residency tests/storage tests/video
test-oldest test-lerobot test-lerobot-old test-clouds $(OTHER_PYTHONS): test-%:
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-$*/bin/uv pip install --quiet --python .venv-$* $(PACKAGES) 'hypothesis>=6.100' 'pytest>=8.0' \
	  'pytest-timeout>=2.3' 'pytest-xdist>=3.8' psutil
	.venv-$*/bin/python -m pytest $(PYTEST_OPTIONS) $(TESTS)

# What a killed process ran is lost, and so is all of chaos. RDMA runs in a guest. A failed test does not stop the report:
# measured processes are slow, and print more. Tests copy the packages to other folders, which do not count.
coverage: $(VENV)/installed-test site
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest $(PYTEST_OPTIONS) -m 'not nightly' --ignore tests/chaos --ignore tests/rdma
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort cover --include "gear_data/*,loaders/*,kernels/*" --precision 2

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

dist: $(VENV)/installed-release
	$(BIN)/python scripts/release.py

release: $(VENV)/installed-release
	$(BIN)/python scripts/release.py --tag

gpu:
	PYTHON=$(PYTHON) scripts/gpu_check.sh

# One stamp file per set of extras, so that `make demo` does not install packages that only the tests need.
$(VENV)/installed-%: pyproject.toml constraints.txt hashes.txt | $(BIN)/python
	$(if $(LOCKED),$(INSTALL) setuptools && $(PIP_INSTALL) --no-build-isolation --no-deps -e .)
	$(INSTALL) $(if $(LOCKED),'gear-data[$*]',-e '.[$*]')
	$(if $(filter test,$*),$(INSTALL_ALONE) $(ALONE))
	$(if $(filter test,$*),$(INSTALL_ALONE) --upgrade --target $(BESIDE) torchvision)
	@touch $@

# The pip of Python 3.11 takes minutes to resolve the dependencies; pip 25 does not.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "The venv module is missing (Debian, Ubuntu: apt-get install python3-venv)"; exit 1; }
	$(PIP_INSTALL) --upgrade 'pip>=25'

# The Python package index has torch's CUDA build. PyTorch's own has the CPU build: its hash for CPython 3.11 on x86-64.
TORCH_CPU_HASH := sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
LOCK := uv pip compile --quiet --universal --python-version 3.11 -c constraints.txt --generate-hashes --no-annotate --no-header
# Renews hashes.txt after a change of constraints.txt.
lock:
	echo '# Hashes of the files of constraints.txt and of what they need, for `make LOCKED=1`. `make lock` writes them.' > hashes.txt.new
	$(LOCK) pyproject.toml --extra test --extra release >> hashes.txt.new
	printf '%s\n' $(ALONE) torchvision | $(LOCK) --no-deps - >> hashes.txt.new
	sed -i 's/^torch==.*/&\n    --hash=$(TORCH_CPU_HASH) \\/' hashes.txt.new
	mv hashes.txt.new hashes.txt

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest .venv-lerobot .venv-python3.1? .venv-gpu gear-data-gpu.tar.xz gpu-results demo-output site build dist *.egg-info
