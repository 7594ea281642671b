# `make` alone prints what there is. Everything is installed below .venv; nothing else of the machine is changed, except by
# `make servers` (and what needs it), which installs Debian packages, fetches jars into .jars and starts no service.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
BASE := $(VENV)/.installed-base
FULL := $(VENV)/.installed-full

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(FULL) ## make .venv with workq, all extras and the tools (again only when pyproject.toml changes)
	@echo "setup: $(VENV) is ready"

.PHONY: servers
servers: ## install RabbitMQ, Redis, PostgreSQL, PgBouncer, MariaDB and Java from Debian, Kafka and Artemis with Maven: what is missing
	@scripts/install-servers-debian.sh
	@scripts/install-jars.sh

.PHONY: demo
demo: $(if $(wildcard $(FULL)),$(FULL),$(BASE)) ## a reindex job in one SQLite file: needs Python only, no servers
	@echo "demo: SQLite only, no servers; works in a temporary folder"
	@$(BIN)/workq demo reindex

.PHONY: demo-full
demo-full: $(FULL) servers ## the same job on private RabbitMQ, Redis and PostgreSQL, started for it and ended after it
	@echo "demo-full: starts private servers on free ports, and ends them afterwards"
	@$(BIN)/workq demo reindex --servers

.PHONY: demo-kafka
demo-kafka: $(FULL) servers ## the same job with Kafka in the place of RabbitMQ
	@echo "demo-kafka: starts private servers on free ports, and ends them afterwards"
	@$(BIN)/workq demo reindex --kafka

.PHONY: demo-webhooks
demo-webhooks: $(FULL) ## 2,000 webhooks to five receivers, four of them difficult: needs Python only, no servers
	@echo "demo-webhooks: SQLite only, no servers; works in a temporary folder"
	@$(BIN)/workq demo webhooks

.PHONY: demo-messages
demo-messages: $(FULL) ## 20,000 messages at their time to RabbitMQ, Kafka, HTTP and a function: what the machine lacks is left out
	@echo "demo-messages: SQLite; private RabbitMQ and Kafka where they are installed; works in a temporary folder"
	@$(BIN)/workq demo messages

.PHONY: test
test: $(FULL) servers ## all tests, against private servers; a missing server is a failure (LEGS=both: each fault on SQLite too)
	@echo "test: unit, contract, simulation, fault and system tests; private servers on free ports; nothing is skipped"
	@scripts/prepare-tests.sh
	@scripts/in-memory.sh scripts/pythons.sh
	@scripts/in-memory.sh $(BIN)/pytest --require=all --numprocesses=5 --dist=worksteal $(if $(LEGS),--both-legs)

.PHONY: pythons
pythons: $(FULL) servers ## unit, contract and simulation tests on each Python that is promised; fetches those that are missing (root)
	@echo "pythons: what this machine lacks comes from newer suites of Debian, below .pythons"
	@scripts/pythons.sh --all

LONG := $(foreach name,audit cancel_all chaos dead delays jobs keys kills limits lost_hints order partitions patched promises scale transaction webhooks,tests/system/test_$(name).py)

.PHONY: long
long: $(FULL) servers ## the figures at full size: kills, losses, audits, order, limits, memory, a deep backlog (two hours)
	@echo "long: the contracts on PostgreSQL through PgBouncer; the system tests at full size; prints what it measured"
	@$(BIN)/pytest --require=all --pooled --numprocesses=2 tests/contract -k PostgreSQL
	@$(BIN)/pytest --require=all --long --both-legs --timeout=1800 -rP -p no:randomly $(LONG)
	@$(BIN)/pytest --require=all --long --timeout=1800 -rP tests/contract/test_ledger_contract.py -k "moment_in_which_it_is_due or keep_the_rules or keeps_the_rules"

.PHONY: test-newer
test-newer: $(FULL) servers ## contracts, faults and certify on the servers of Debian 13, in a folder (SUITE=forky ONLY=RabbitMQ,certify; root)
	@scripts/install-newer-servers.sh $(or $(SUITE),trixie)
	@$(BIN)/python -m tests.tried --suite $(or $(SUITE),trixie) $(if $(ONLY),--only $(ONLY)) --minutes $(or $(MINUTES),3)

KAFKAS := $(or $(KAFKA),4.0.2,4.2.2,4.4.0)
comma := ,

.PHONY: test-kafka
test-kafka: $(FULL) servers ## contracts, faults and fleets on Kafka 4.0, 4.2 and 4.4, and classic groups (KAFKA=4.0.2,4.2.2)
	@scripts/install-jars.sh $(subst $(comma), ,$(KAFKAS))
	@$(BIN)/python -m tests.tried --kafka $(KAFKAS)

.PHONY: simulate
simulate: $(FULL) ## the production code in simulated worlds, SEEDS=10000, both cores; then every bug on purpose must be seen
	@echo "simulate: no servers; a violation prints the command that replays it, and ends with 3"
	@$(BIN)/python -m tests.simulation.simulate --seeds $(or $(SEEDS),10000) --first $(or $(FIRST),1) --mutants

.PHONY: chaos
chaos: $(FULL) servers ## faults at random on real servers, MINUTES=3 for each leg, from SEED=n: prints the figures (LEG=kafka)
	@echo "chaos: embedded, then on private RabbitMQ, Redis and PostgreSQL; a finding ends with 3"
	@$(BIN)/python -m tests.system.chaos --minutes $(or $(MINUTES),3) $(if $(SEED),--seed $(SEED)) $(if $(LEG),--leg $(LEG))

.PHONY: chaos-kafka
chaos-kafka: $(FULL) servers ## tasks through three nodes of Kafka, while nodes, topics and records are lost, RECORDS=200000: 0 lost, or exit 3
	@echo "chaos-kafka: private PostgreSQL, Redis and three nodes of Kafka on free ports; some ten minutes"
	@$(BIN)/python -m tests.faults.kafka_trial --records $(or $(RECORDS),200000) $(if $(ONLY),--only "$(ONLY)")

.PHONY: intake-kafka
intake-kafka: $(FULL) servers ## 100,000 records from three nodes of Kafka, while members and nodes are killed: each once, or exit 3
	@echo "intake-kafka: private PostgreSQL and three nodes of Kafka on free ports; some minutes"
	@$(BIN)/python -m tests.faults.intake_trial --records $(or $(RECORDS),100000)

.PHONY: idle-kafka
idle-kafka: $(FULL) servers ## 64 processes on 8 partitions, tasks of 1 ms to 60 s, MINUTES=5: none waits 3 s while one is idle, or exit 3
	@echo "idle-kafka: private PostgreSQL, Redis and Kafka on free ports; 2 GB; ends up to a minute after the last task"
	@$(BIN)/python -m tests.faults.idle_trial --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED))

.PHONY: cluster-rabbitmq
cluster-rabbitmq: $(FULL) servers ## tasks through three nodes of RabbitMQ that die, stand still or lose each other, MINUTES=3 (SUITE=trixie; root): 0 lost, or exit 3
	@echo "cluster-rabbitmq: private PostgreSQL, Redis and three nodes of RabbitMQ on free ports, then in network namespaces"
ifdef SUITE
	@scripts/install-newer-servers.sh $(SUITE)
	@$(BIN)/python -m tests.tried --suite $(SUITE) --only cluster --minutes $(or $(MINUTES),3)
else
	@$(BIN)/python -m tests.faults.rabbitmq_trial --minutes $(or $(MINUTES),3)
	@$(BIN)/python -m tests.faults.rabbitmq_cuts
endif

.PHONY: host-death
host-death: $(FULL) servers ## DEATHS=100 hosts cut off and killed, FAULTS=100 with one way left to a store: a histogram, or exit 3 (root)
	@echo "host-death: private servers, hosts in network namespaces, which are removed; about half an hour"
	@$(BIN)/python -m tests.faults.host_trial --deaths $(or $(DEATHS),100) --faults $(or $(FAULTS),100)

.PHONY: bench
bench: $(FULL) servers ## workq beside its peers, RUNS=5 ONLY=workq,huey MEASURE=drain,bulk: tables, ratios, goals (hours for all)
	@echo "bench: private servers on free ports; each peer in an environment of its own below .bench, made when missing"
	@$(BIN)/python -m benchmarks --runs $(or $(RUNS),5) $(if $(TASKS),--tasks $(TASKS)) $(if $(ONLY),--only $(ONLY)) \
	  $(if $(MEASURE),--measure $(MEASURE)) $(if $(QUICK),--quick) $(if $(OUTPUT),--output $(OUTPUT))

.PHONY: bench-kafka
bench-kafka: $(FULL) servers ## workq on Kafka beside workq on RabbitMQ, in turns: every figure of workq bench, and the ratio (RUNS=3 TASKS=20000)
	@echo "bench-kafka: private PostgreSQL, Redis, RabbitMQ and Kafka on free ports; about a quarter of an hour"
	@$(BIN)/python -m benchmarks.kafka $(if $(RUNS),--runs $(RUNS)) $(if $(TASKS),--tasks $(TASKS)) \
	  $(if $(SECONDS),--seconds $(SECONDS)) $(if $(OUTPUT),--output $(OUTPUT))

.PHONY: jobs
jobs: $(FULL) servers ## a job beside a plain loop, under kills, of ten million items: overhead, memory, progress
	@echo "jobs: private servers on free ports; some minutes"
	@$(BIN)/python -m benchmarks.jobs $(if $(OUTPUT),--output $(OUTPUT))

.PHONY: webhooks
webhooks: $(FULL) servers ## webhooks beside a plain loop of requests, beside a slow receiver, and one dead of a thousand
	@echo "webhooks: private servers on free ports; about a quarter of an hour"
	@$(BIN)/python -m benchmarks.webhooks $(if $(RUNS),--runs $(RUNS)) $(if $(OUTPUT),--output $(OUTPUT))

.PHONY: lateness
lateness: $(FULL) servers ## how late delayed hints come: a TTL hop, both ladders, rows of the ledger (SECONDS=3 RATES=200,1000 ONLY=ledger)
	@echo "lateness: private servers on free ports; about a minute and a half"
	@$(BIN)/python -m benchmarks.lateness $(if $(SECONDS),--seconds $(SECONDS)) $(if $(RATES),--rates $(RATES)) \
	  $(if $(ONLY),--only $(ONLY))

.PHONY: late-peers
late-peers: $(FULL) servers ## how late messages arrive, beside a TTL hop, Artemis and Celery (RUNS=1 ONLY=hop,celery MOMENT=50000 OUTPUT=file)
	@echo "late-peers: private servers on free ports, Celery in an environment of its own below .bench; about six minutes"
	@$(BIN)/python -m benchmarks.late_peers $(if $(RUNS),--runs $(RUNS)) $(if $(ONLY),--only $(ONLY)) \
	  $(if $(TASKS),--tasks $(TASKS)) $(if $(MOMENT),--moment $(MOMENT)) $(if $(OUTPUT),--output $(OUTPUT))

.PHONY: volume
volume: $(FULL) servers ## many messages at their time: 5,000 a second, 50,000 at one moment, a million waiting (ONLY=moment RATE=5000)
	@echo "volume: private servers on free ports; some 15 minutes"
	@$(BIN)/python -m benchmarks.volume $(if $(ONLY),--only $(ONLY)) $(if $(RATE),--rate $(RATE))

.PHONY: growth
growth: $(FULL) servers ## claims against backlog, kept rows, workers, payloads, queues, a pinned horizon (HORIZON=1: that alone)
	@echo "growth: private servers on free ports; about a quarter of an hour, and four times ten minutes for the horizon"
	@$(BIN)/python -m benchmarks.growth --output docs/growth.json --plot docs/growth.png $(if $(QUICK),--quick) \
	  $(if $(HORIZON),--horizon) $(if $(ONLY),--only $(ONLY))

.PHONY: steps
steps: $(FULL) servers ## one enqueue and the way of one task, step by step: where the time goes, and where the wall is
	@echo "steps: private servers on free ports; about a minute"
	@$(BIN)/python -m benchmarks.steps $(if $(OUTPUT),--output $(OUTPUT))

# Measures the structure of the package, and with SINCE=commit that of a commit beside it; then how many files, calls and
# frames one enqueue, one task, one reap, one webhook and one chunk take. Without a line in `make help`, which is for users.
.PHONY: measures
measures: $(FULL) servers
	@$(BIN)/python -m benchmarks.house $(if $(SINCE),--since $(SINCE))
	@$(BIN)/python -m benchmarks.traces

.PHONY: check
check: $(FULL) ## format, lint, types and import contracts: needs no servers
	@echo "check: ruff format"
	@$(BIN)/ruff format --check .
	@echo "check: ruff"
	@$(BIN)/ruff check .
	@echo "check: mypy --strict"
	@$(BIN)/mypy --strict
	@echo "check: import contracts"
	@$(BIN)/lint-imports

.PHONY: format
format: $(FULL) ## rewrite the files in the one format, and fix what the linter can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: migration
migration: $(FULL) ## write the files of sql/ that the tables make, NAME="what the next version brings" (CONTRIBUTING.md)
	@$(BIN)/python -m tests.contract.sql_files $(NAME)

.PHONY: clean
clean: ## remove .venv, .pythons, .newer, .bench, caches and build results
	@rm -rf $(VENV) .pythons .newer .bench build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "workq needs Python 3.11 or newer as '$(PYTHON)' (another one: make PYTHON=python3.12 ...)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "workq needs the venv module of Python: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(BASE): pyproject.toml | $(BIN)/python
	@echo "setup: installing workq into $(VENV) (needs the package index; about a minute)"
	@$(PIP) --editable .
	@touch $@

$(FULL): pyproject.toml | $(BIN)/python
	@echo "setup: installing workq with all extras and tools into $(VENV) (needs the package index; about two minutes)"
	@$(PIP) --editable '.[all,dev]'
	@touch $@ $(BASE)
