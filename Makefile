# What a developer does, by name. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help venv lock console run demo test coverage compile wheel wheel-test new-user image-test compiled check format docs bench soak interop kafka-up kafka-down zookeeper-up zookeeper-down cluster-test cluster-soak clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVING := $(VENV)/.serving
INSTALLED := $(VENV)/.installed
DOCUMENTING := $(VENV)/.documenting
UV := $(shell command -v uv 2>/dev/null)
INSTALL := $(if $(UV),uv pip install --python $(BIN)/python,$(BIN)/python -m pip install --disable-pip-version-check)
COMPILED := $(CURDIR)/build/compiled
LOCKED ?= 1
VERSIONS := $(if $(LOCKED),--constraint constraints.txt)
EXTRAS := arrow,kafka,zookeeper,spark,schemas,lakes,outbox,nsq,sns,docs,dev
COVERING ?= tests/core tests/store tests/test_salvage.py tests/test_backup.py tests/simulation tests/server tests/client tests/protocols/sqs tests/cluster/routing/test_router.py tests/cluster/links/test_wire.py src/penstock/core src/penstock/store
CORE_COVERAGE ?= 95
STORE_COVERAGE ?= 95
SEEDS ?= 10000
KILLS ?= 500
FAULT_SEEDS ?= 100
SALVAGE_SEEDS ?= 1000
SOAK_SECONDS ?= 180
CLUSTER_SUITES := protocols-sqs protocols-rest protocols-websocket client protocols-nsq-clients cluster-membership-test_broker_silence.py shards
PIPELINE_KILLS ?= 20
LISTENER_KILLS ?= 200
OUTBOX_KILLS ?= 200
SNS_KILLS ?= 50
SEED ?= 1000
BROKERS ?= 1
SERVERS ?= 1

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## Create .venv with every extra, at the versions in constraints.txt (LOCKED= takes the newest); again only when pyproject.toml changes

lock: $(SERVING) ## Write constraints.txt anew: the newest versions that fit together
	$(BIN)/python -m tools.lock $(EXTRAS)

$(SERVING): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or later; name one: make PYTHON=python3.12")'
	@echo "Installing what serving needs into $(VENV) (once; about 120 MB)"
	@test -x $(BIN)/python || $(if $(UV),uv venv --quiet --python "$$(command -v $(PYTHON))" $(VENV),$(PYTHON) -m venv $(VENV))
	$(INSTALL) $(VERSIONS) --editable .
	@touch $@

$(INSTALLED): $(SERVING)
	@echo "Installing what the tests need into $(VENV) (once; about 1.9 GB: Spark, clients, checkers)"
	$(INSTALL) $(VERSIONS) --editable '.[$(EXTRAS)]'
	@touch $@

$(DOCUMENTING): $(SERVING)
	@echo "Installing what the documentation needs into $(VENV) (once; about 120 MB)"
	$(INSTALL) $(VERSIONS) --editable '.[docs]'
	@touch $@

console: ## Build the console's page from console/ into src/penstock/console/static (needs Node 20.19 or later; serving does not)
	cd console && npm ci --no-audit --no-fund --loglevel=error && npm test && npm run build

run: $(SERVING) ## Serve the queues in ./data: SQS on port 9324, REST and metrics on 9325, NSQ on 4150
	@$(BIN)/python -m tools.run serve --data ./data

demo: $(SERVING) ## Run the demo: send, receive, fail, retry, dead-letter
	@$(BIN)/python -m tools.run demo

test: $(INSTALLED) ## Run every test, the doctests included, in some processes side by side; what fails is run again alone
	$(BIN)/python -m tools.test

coverage: $(INSTALLED) ## Say how much of the core and of the embedded store the tests reach, lines and branches; fail below CORE_COVERAGE and STORE_COVERAGE percent
	PENSTOCK_TEST_SEEDS=50 $(BIN)/python -m coverage run -m pytest $(COVERING)
	$(BIN)/python -m coverage report --include='src/penstock/core/*' --fail-under=$(CORE_COVERAGE)
	$(BIN)/python -m coverage report --include='src/penstock/store/*' --omit='*kafka*' --fail-under=$(STORE_COVERAGE)

compile: $(INSTALLED) ## Compile the hot half of the package into build/compiled (minutes, once; needs a C compiler)
	$(BIN)/python -m tools.compile

wheel: $(INSTALLED) ## Build dist/: a source distribution, and a wheel with the hot half compiled (minutes; needs a C compiler)
	rm -rf dist
	$(BIN)/python -m build --sdist
	PENSTOCK_COMPILE=1 $(BIN)/python -m build --wheel
	$(BIN)/python -m twine check --strict dist/*

wheel-test: $(INSTALLED) ## Run the tests on the wheel in dist/, unpacked: the package that people install
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python -m zipfile -e dist/penstock_mq-*.whl build/wheel
	$(BIN)/python -m tools.test --package build/wheel

new-user: $(INSTALLED) ## Do what a new user does, from an empty clone and from a wheel, with every Python on the PATH or of pyenv (options: NEW_USER="--python P --compiled")
	$(BIN)/python -m tools.new_user $(NEW_USER)

image-test: $(SERVING) ## Build the image by the Dockerfile's steps without Docker, run it, say how large it is (needs root, and Debian's apt; minutes)
	$(BIN)/python -m tools.image build build/image
	$(BIN)/python -m tools.image try build/image

compiled: compile ## Run the tests on the compiled package
	$(BIN)/python -m tools.test --package $(COMPILED)

check: $(INSTALLED) ## Lint, check the format, check the types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED) ## Format the code, and repair what the linter can
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(DOCUMENTING) ## Build the documentation site into build/site; fail on a broken link (to read it: python -m http.server --directory build/site)
	$(BIN)/python -m docs.draw
	$(BIN)/python -m mkdocs build --strict

bench: compile ## Run every benchmark on the compiled package, add the run to docs/benchmarks-history.md and rewrite docs/benchmarks.md
	PYTHONPATH=$(COMPILED) $(BIN)/python -m bench.run

soak: $(INSTALLED) ## Simulate SEEDS seeds, kill -9 a loaded process KILLS times, break FAULT_SEEDS networks and connections at every byte, flip every byte of a directory, salvage SALVAGE_SEEDS damaged ones, attack servers, kill listeners, outboxes, pipelines and servers that publish (*_KILLS)
	$(BIN)/python -m tests.simulation.soak --seeds $(SEEDS)
	$(BIN)/python -m tests.kill.soak --kills $(KILLS)
	$(BIN)/python -m tests.faults.soak --seeds $(FAULT_SEEDS)
	$(BIN)/python -m tests.faults.broken
	$(BIN)/python -m tests.store.flips
	$(BIN)/python -m tests.store.salvages --seeds $(SALVAGE_SEEDS)
	$(BIN)/python -m tests.attacks.soak
	$(BIN)/python -m tests.client.soak --kills $(LISTENER_KILLS) --seed $(SEED)
	$(BIN)/python -m tests.outbox.soak --kills $(OUTBOX_KILLS) --seed $(SEED)
	$(BIN)/python -m tests.pipelines.ready.soak --kills $(PIPELINE_KILLS)
	$(BIN)/python -m tests.protocols.sns.soak --kills $(SNS_KILLS)
	$(BIN)/python -m tests.protocols.sns.soak --kills $(SNS_KILLS) --where shards

interop: $(INSTALLED) ## Run NSQ's own programs, Airflow's SQS triggers and the Airflow example against Penstock (builds and fetches them: needs Go, 400 MB)
	$(BIN)/python -m bench.nsq_tools
	INTEROP=1 $(BIN)/python -m pytest tests/protocols/nsq/interop tests/compat/test_airflow.py

kafka-up: $(INSTALLED) ## Run BROKERS brokers of Apache Kafka on this machine (needs Java 17 and Maven), and print where
	@$(BIN)/python -m tools.kafka up --brokers $(BROKERS)

kafka-down: $(INSTALLED) ## Stop them
	@$(BIN)/python -m tools.kafka down

zookeeper-up: $(INSTALLED) ## Run SERVERS servers of Apache ZooKeeper on this machine (needs Java 17 and Maven), and print where
	@$(BIN)/python -m tools.zookeeper up --servers $(SERVERS)

zookeeper-down: $(INSTALLED) ## Stop them
	@$(BIN)/python -m tools.zookeeper down

cluster-test: $(addprefix cluster-test-,$(CLUSTER_SUITES)) ## Run the suites of the front ends and of the client on three nodes over three brokers (PENSTOCK_TEST_ENGINE=zookeeper: servers of ZooKeeper), and on shards of two nodes

cluster-test-%: $(INSTALLED)
	@echo "== tests/$(subst -,/,$*) on three nodes over three brokers"
	CI=true PENSTOCK_TEST_CLUSTER=3 $(BIN)/python -m pytest tests/$(subst -,/,$*) $(if $(findstring nsq,$*),--ignore=tests/protocols/nsq/clients/test_kill.py)

cluster-test-shards: $(INSTALLED)
	@echo "== front ends and client on shards of two nodes"
	PENSTOCK_TEST_SHARDS=3 $(BIN)/python -m pytest tests/protocols/sqs tests/protocols/rest tests/protocols/websocket tests/protocols/bulk tests/client
	PENSTOCK_TEST_SHARDS=3 PENSTOCK_TEST_NEAR=all $(BIN)/python -m pytest tests/protocols/nsq --ignore=tests/protocols/nsq/clients

cluster-soak: $(INSTALLED) ## Break nodes, servers (Kafka's with its default settings) and networks of a cluster under load, in 25 ways for SOAK_SECONDS each; count every message
	$(BIN)/python -m tests.cluster.soak --seconds $(SOAK_SECONDS)
	$(BIN)/python -m tests.store.kafka_kills
	$(BIN)/python -m tests.protocols.sns.soak --kills $(SNS_KILLS) --where kafka
	$(BIN)/python -m bench.broker_loss
	$(BIN)/python -m bench.broker_loss --how pause
	$(BIN)/python -m bench.failover --pauses
	$(BIN)/python -m bench.failover --pauses --target 3 --more 'proof_s = 0.5'
	$(BIN)/python -m bench.failover --how stop
	$(BIN)/python -m tests.cluster.placement.test_balance_day

clean: ## Remove .venv, caches and build output
	@test ! -f build/kafka/up.json || $(PYTHON) -m tools.kafka down
	@test ! -f build/zookeeper/up.json || $(PYTHON) -m tools.zookeeper down
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse
	find src tests bench -type d -name __pycache__ -prune -exec rm -rf {} +
