# Two commands do everything on a fresh machine: `make demo` and `make test`. Both set up .venv first if need be.
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check
RUNS ?= 100000
SEED ?= 1
TARGETS ?=
TIMES ?= 10
BUSY ?= 5
BASE ?=
FLAGS ?=
NAMES ?=
RESULTS ?=
FLOWER ?= 1.40.0
# Marks of tests that need more than this machine's Python; each has a target of its own.
APART := compose or tcpdump or notebooks or site or browser or prometheus or trackers or cuda or ray
# Each target starts many interpreters: what one of them has compiled, the others need not compile again.
unexport PYTHONDONTWRITEBYTECODE
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

.PHONY: help demo up down test test-calm test-slow test-chaos test-compose test-tcpdump test-notebooks test-browser \
	test-prometheus test-trackers test-cuda test-ray test-package test-ranges lint format proto docs docs-site bench \
	bench-link bench-flower bench-compare bench-docs same-bits fuzz audit clean venv

help:  ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: venv  ## Train FedPVR, FedAvg and SCAFFOLD with a real server and real clients on this machine.
	$(BIN)/fedlab demo

up:  ## Run one server and CLIENTS clients (4) in containers; docs/operations.md has the settings.
	$(COMPOSE) up --build

down:  ## Remove these containers; results and state stay in their volumes.
	$(COMPOSE) down

test: venv  ## Run the tests (two to four minutes on two cores).
	$(BIN)/pytest -n 2 --dist worksteal

test-calm: venv  ## Run the tests TIMES times in a row, BUSY of them beside busy loops: do they fail by luck?
	$(BIN)/python -m tests.calm $(TIMES) $(BUSY) $(MAKE) test

test-slow: venv  ## Run the long tests too, and more examples of every property.
	$(BIN)/pytest -n 2 --dist worksteal --hypothesis-profile thorough -m "not ($(APART))"

test-compose: venv  ## Run the tests that need a Docker engine.
	COMPOSE="$(COMPOSE)" $(BIN)/pytest -m compose tests/test_compose.py

test-tcpdump: venv  ## Run the test that captures packets (needs tcpdump and root).
	$(BIN)/pytest -m tcpdump tests/test_fedwire.py

test-prometheus: venv  ## Run the tests with a real Prometheus (needs prometheus and promtool, as Debian has them).
	$(BIN)/pytest -m prometheus tests/test_prometheus.py

# Not among the pins: MLflow brings forty packages.
test-trackers: venv  ## Run the tests with the real TensorBoard and MLflow, which are installed first.
	@$(BIN)/python -c 'import alembic, mlflow, sqlalchemy, tensorboard' 2> /dev/null || \
		$(PIP_INSTALL) -c requirements.txt -r requirements-trackers.txt
	$(BIN)/pytest -m trackers tests/test_track.py

test-cuda: venv  ## Run the tests that need a GPU, and torch with CUDA.
	$(BIN)/pytest -m cuda tests/test_cuda.py

# Not among the pins: it takes a quarter of a gigabyte.
test-ray: venv  ## Run experiments on a Ray cluster of two nodes, one of which is lost; Ray is installed first.
	@$(BIN)/python -c 'import ray' 2> /dev/null || $(PIP_INSTALL) -c requirements.txt -r requirements-ray.txt
	$(BIN)/pytest -m ray tests/test_ray.py

# Neither is among the pins: one brings a driver of 45 MB along, the other is no Python.
test-browser: venv  ## Look at the dashboard in a real browser (needs chromium and npm).
	@$(BIN)/python -c 'import playwright' 2> /dev/null || $(PIP_INSTALL) playwright==1.65.2
	@test -d .venv/axe-core || { mkdir -p .venv/axe-core && cd .venv/axe-core && \
		npm pack --silent axe-core@4.14.0 > /dev/null && tar xzf axe-core-4.14.0.tgz; }
	$(BIN)/pytest -m browser tests/test_browser.py

# A kernel brings much with it that nothing else here needs.
test-notebooks: venv  ## Execute the notebooks in docs/notebooks (a minute or two).
	@$(BIN)/python -c 'import ipykernel, nbclient' 2> /dev/null || $(PIP_INSTALL) -r docs/notebooks/requirements.txt
	$(BIN)/pytest -m notebooks tests/test_notebooks.py

test-chaos: venv  ## Kill and break everything at every point (a quarter of an hour).
	$(BIN)/pytest -n 2 --dist worksteal -m "not ($(APART))" tests/test_chaos.py tests/test_graceful.py tests/test_hostile.py

test-package: venv  ## Build the package, install it into clean environments and train with it away from here.
	$(BIN)/pytest -m slow tests/test_package.py

test-ranges: venv  ## Run a choice of tests with the lowest and the newest versions that pyproject.toml allows.
	$(BIN)/python -m tests.ranges $(PYTHON) $(FLAGS)

lint: venv  ## Check style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv  ## Put the code into house style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: venv  ## Generate the bindings from proto/ again.
	$(BIN)/python -m grpc_tools.protoc -I proto --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
		--python_out=proto --mypy_out=quiet:proto proto/fedpvr/v1/*.proto
	$(BIN)/python -m grpc_tools.protoc -I proto --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
		--grpc_python_out=proto --mypy_grpc_out=quiet:proto proto/fedpvr/v1/federation.proto

docs: venv  ## Write the documents that come from the code again, and build the site in build/site.
	$(BIN)/python -m fedserver.settings_table > docs/settings.md
	$(BIN)/python -m common.records.document > docs/run-directory.md
	$(BIN)/python -m fedclient.policy.reference docs/site-policy.md
	$(BIN)/python -m fedclient.check.document > docs/checks.md
	$(BIN)/python -m fedlab.documents.events > docs/events.md
	$(BIN)/python -m fedlab.documents.exit_codes > docs/exit-codes.md
	$(BIN)/python -m fedlab.documents.metrics docs/reference/metrics.md
	$(BIN)/python -m fedlab.documents.rooms > docs/pictures/rooms.svg
	$(BIN)/python -m fedserver.metrics.document docs/monitoring.md
	$(MAKE) docs-site

# Not among the pins of every environment: nobody needs it to train or to test.
docs-site: venv  ## Build the site of the documents as they are, without a warning, and check what was built.
	@cmp -s docs/requirements.txt .venv/docs-requirements.txt || { echo "installing Sphinx (once) ..." && \
		$(PIP_INSTALL) -c requirements.txt -r docs/requirements.txt && cp docs/requirements.txt .venv/docs-requirements.txt; }
	@rm -rf build/site build/doctrees
	$(BIN)/sphinx-build -W --keep-going -q -j auto -d build/doctrees docs build/site
	$(BIN)/pytest -m site tests/test_site.py

bench: venv  ## Run the benchmarks, or those of NAMES; results go to benchmarks/results (a few minutes).
	$(BIN)/python benchmarks/run.py $(NAMES) $(FLAGS)

bench-link: venv  ## Measure rounds on slow links made with tc (needs root).
	$(BIN)/python benchmarks/run.py link

# Not among the pins: it needs other versions of what we use, and an environment of half a gigabyte.
bench-flower: venv  ## Run the same rounds with Flower, in an environment of its own, and with ours (a quarter of an hour).
	@test -x .venv-flower/bin/flower-superlink || { $(PYTHON) -m venv .venv-flower && \
		.venv-flower/bin/pip install --quiet --disable-pip-version-check "flwr[simulation]==$(FLOWER)"; }
	$(BIN)/python benchmarks/run.py flower $(FLAGS)

bench-compare: venv  ## Run benchmarks (NAMES) on revision BASE and here in turn, and print ratios.
	@test -n "$(BASE)" || { echo "say what to compare with, for example: make bench-compare BASE=main"; exit 2; }
	PYTHONPATH=benchmarks $(BIN)/python -m measure.compare $(BASE) $(NAMES) $(FLAGS)

bench-docs: venv  ## Fill the tables and the picture of README and docs/performance.md from the newest results.
	PYTHONPATH=benchmarks $(BIN)/python -m published.documents $(RESULTS)

same-bits: venv  ## Run the same federations in revision BASE and here, and compare results byte for byte.
	@test -n "$(BASE)" || { echo "say what to compare with, for example: make same-bits BASE=main"; exit 2; }
	$(BIN)/python -m tests.same_bits $(BASE) $(FLAGS)

# Neither tool is among the pins: one has wheels for few machines, the other brings much with it.
fuzz: venv  ## Look for inputs that break a decoder: RUNS executions of each of TARGETS.
	@$(BIN)/python -c 'import atheris' 2> /dev/null || $(PIP_INSTALL) atheris==3.0.0
	$(BIN)/python -m tests.fuzz.run $(TARGETS) --runs $(RUNS) --seed $(SEED)

audit: venv  ## Look for secrets in the tree and for known vulnerabilities of dependencies.
	@test -x $(BIN)/pip-audit || $(PIP_INSTALL) pip-audit==2.10.1 || echo "pip-audit cannot be installed"
	@$(BIN)/python -m tests.audit

# The environment is rebuilt only when the pins change; the copy inside it says which pins it has.
venv:
	@cat requirements.txt proto/generator.txt | cmp -s - .venv/requirements.txt || { set -e; \
		echo "setting up .venv (once, a minute or two) ..."; \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; say: make PYTHON=python3.11")'; \
		rm -rf .venv; $(PYTHON) -m venv .venv; \
		$(PIP_INSTALL) -r requirements.txt; \
		$(PIP_INSTALL) --no-deps -r proto/generator.txt; \
		$(PIP_INSTALL) --no-deps --no-build-isolation -e .; \
		cat requirements.txt proto/generator.txt > .venv/requirements.txt; }

clean:  ## Remove the environment and everything generated but not committed.
	rm -rf .venv .venv-flower .venv-lowest .venv-newest .mypy_cache .ruff_cache .pytest_cache build dist runs
	find . -name __pycache__ -prune -exec rm -rf {} +
