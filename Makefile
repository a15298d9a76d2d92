# Every target installs what it needs; `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

BIN := .venv/bin
STACK := $(BIN)/isotherm-stack
SOURCES := $(wildcard conftest.py libs schemas services cli stack simulators contracts-tests demo deploy reference proofs examples tests bench)
PYTEST := $(BIN)/pytest

# With helm and kubeconform (`make charts-tools`), `make test` renders the charts too.
CHART_TOOLS := $(shell PATH="$$PATH:$${ISOTHERM_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/isotherm}/bin"; \
	command -v helm && command -v kubeconform)
# With promtool (Debian: the package prometheus), `make test` evaluates the alert rules too.
# With Alertmanager (Debian: the package prometheus-alertmanager), `make test` sends alerts to it too.
LEFT_OUT := long$(if $(word 2,$(CHART_TOOLS)),, or charts)$(if $(shell command -v promtool),, or promtool)$(if \
	$(shell command -v prometheus-alertmanager),, or alertmanager)

# What `make test-pure` runs: the services that have compiled code or may get some, and their simulations.
PURE := services/mqtt-proxy services/coap-ingest services/alerts proofs/tests/unit/test_proofs_mqtt_world.py \
	proofs/tests/unit/test_proofs_alerts_world.py

# Without this, the verifier of the contract tests sends usage statistics.
export PACT_DO_NOT_TRACK := true

# Images of Python often set it; then each process of a test run compiles the whole suite anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup up down ps logs wipe format lint types unit test test-pure contracts contracts-update contracts-mutations contracts-release can-deploy charts charts-tools charts-update charts-package images compose-proof demo history screenshots docs docs-serve faults soak bench-persisters bench-aggregator bench-reaction bench-live bench-partitions bench-alerts bench-revisions bench-whole lock simulate fuzz fuzz-native fault-runs tamper command-runs prove mutations clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: ## Install everything into .venv, fetch the servers' files; fast when done
	@tools/setup

up: setup ## Start the five servers in the background (data in .stack)
	@$(STACK) up

down: setup ## Stop the servers, keep their data
	@$(STACK) down

ps: setup ## Show the servers' state, memory and addresses
	@$(STACK) ps

logs: setup ## Show a server's log: make logs S=kafka
	@$(STACK) logs $(or $(S),$(error say which server: make logs S=kafka))

wipe: setup ## Delete the data of the stopped servers
	@$(STACK) wipe

format: setup ## Format the code and fix what the linter can fix
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: setup ## Check style, formatting and the layers of imports
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-cache

types: setup ## Check types, sources and tests in one strict run
	@find $(SOURCES) -name '*.py' -not -path '*/build/*' -print0 | xargs -0 -n 100000 $(BIN)/mypy --strict

unit: setup ## Run the tests that need no server
	@$(PYTEST) -q -m "not integration and not e2e and not faults and not long and not charts and not promtool and not alertmanager"

test: setup ## Run everything: lint, types, and all tests on real servers except the long ones; PROCESSES=1 for small machines
	@$(MAKE) --no-print-directory -j2 checks tests

.PHONY: checks tests
checks: lint types

# Four even on two processors: tests with servers often wait, for the end of a dead consumer's session for example.
tests: setup
	@$(PYTEST) -n $(or $(PROCESSES),4) --no-loadscope-reorder -m "not ($(LEFT_OUT))"

test-pure: setup ## Run the suites of MQTT, CoAP and alerts without compiled code, keep the output in docs/results/test-pure.txt
	@ISOTHERM_PURE_PYTHON=1 tools/record-results docs/results/test-pure.txt $(PYTEST) --no-header -q \
		-n $(or $(PROCESSES),4) --no-loadscope-reorder -m "not ($(LEFT_OUT))" $(PURE)

contracts: setup ## Check every promise between the services; needs no server
	@$(PYTEST) -q -n $(or $(PROCESSES),2) -m "not integration" schemas contracts-tests

contracts-update: setup ## Write pacts, recordings and the AsyncAPI document again: make contracts-update REASON="why they change"
	@$(BIN)/python -m isotherm.contracts update --reason "$(REASON)"

contracts-mutations: setup ## Mutate every published field, key, header, status and partitioner; what a consumer uses must be caught
	@$(BIN)/python -m isotherm.contracts mutations

mutations: setup ## Mutate the delivery cores, all or C="policies coap-dedup"; adds to docs/results/mutations.txt
	@$(BIN)/python -m isotherm.proofs.mutations --record --processes $(or $(PROCESSES),2) $(addprefix --core ,$(C))

contracts-release: setup ## Record the contracts of a release: make contracts-release VERSION=0.9.0
	@$(BIN)/python -m isotherm.contracts release $(or $(VERSION),$(error say which version: make contracts-release VERSION=0.9.0))

can-deploy: setup ## Check a service against the deployed versions of the others: make can-deploy S=aggregator DEPLOYED=tag-release-or-folder
	@$(BIN)/python -m isotherm.contracts can-deploy $(or $(S),$(error say which service: make can-deploy S=aggregator)) \
		--deployed "$(DEPLOYED)"

charts: setup ## Lint and render the charts and every example, check them against Kubernetes' schemas
	@$(PYTEST) -q tests/deploy/test_charts_values.py tests/deploy/test_charts_rendered.py tests/deploy/test_monitoring.py

charts-tools: ## Build helm and kubeconform into the cache, pinned; needs Go
	@tools/charts-tools

charts-update: setup ## Write values schemas, dashboards and alert rules again
	@$(BIN)/python -m isotherm.deploy update

charts-package: setup ## Pack the umbrella and every service's chart into deploy/dist
	@$(BIN)/python -m isotherm.deploy pack deploy/dist

images: ## Build every image and list their sizes: make images, or N="mqtt-proxy cli"; needs docker or buildah
	@tools/images $(N)

compose-proof: setup ## Run docker-compose.yml on an engine of its own, keep the output in docs/results/compose.txt; needs root
	@tools/record-results docs/results/compose.txt tools/compose-proof

demo: setup ## Run the whole suite on this machine: make demo, make demo RATE=2000 DEVICES=500; with DEMO_SECONDS=90 it ends and checks the result by itself
	@JAVA_HOME="$$($(STACK) java-home)" exec $(BIN)/isotherm-demo $(if $(RATE),--rate "$(RATE)") $(if $(DEVICES),--devices "$(DEVICES)")

history: setup ## Run the demo, write its history and judge it by the promises: make history, make history SECONDS=300
	@JAVA_HOME="$$($(STACK) java-home)" $(BIN)/python -m isotherm.proofs record --demo .stack/history --seconds $(or $(SECONDS),90) .stack/history.jsonl

screenshots: setup ## Take the pictures of docs/screenshots again, during a run of the demo
	@mkdir -p docs/screenshots
	@ISOTHERM_SCREENSHOTS=docs/screenshots $(PYTEST) -q tests/e2e/test_e2e_demo.py -k console

docs: setup ## Build the documentation site into .site; fails on a broken link or anchor
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean

docs-serve: setup ## Show the documentation site at http://127.0.0.1:8000, rebuilt at each change
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

faults: setup ## Run the long fault tests, keep the output in docs/results/faults.txt
	@tools/record-results docs/results/faults.txt $(PYTEST) --no-header -v -n $(or $(PROCESSES),2) --no-loadscope-reorder --durations=0 --durations-min=20 -m "faults and long"

simulate: setup ## Run worlds from seeds, keep the results: make simulate SEEDS=500, W=persisters, or HOURS=100
	@$(BIN)/python -m isotherm.proofs simulate --record $(if $(HOURS),--hours $(HOURS),--seeds $(or $(SEEDS),100)) --processes $(or $(PROCESSES),2) $(addprefix --world ,$(W))

fault-runs: setup ## Random faults on real servers, three brokers among them: the next seeds, RUNS=1 of SECONDS=300; adds to docs/results/fault-runs.txt
	@JAVA_HOME="$$($(STACK) java-home)" $(BIN)/python -m isotherm.proofs faults --record --runs $(or $(RUNS),1) --seconds $(or $(SECONDS),300)

tamper: setup ## Change records and rows of a running system, which reconciliation has to name: FAULTS=1000; adds to docs/results/tampering.txt
	@JAVA_HOME="$$($(STACK) java-home)" $(BIN)/python -m isotherm.proofs tamper --record --seed $(or $(SEED),0) --faults $(or $(FAULTS),1000)

command-runs: setup ## Commands to devices through kills, compared with the devices' logs: COMMANDS=100000 DEVICES=5000 KILLS=20; adds to docs/results/commands.txt
	@JAVA_HOME="$$($(STACK) java-home)" $(BIN)/python -m isotherm.proofs commands --record --seed $(or $(SEED),0) --commands $(or $(COMMANDS),100000) --devices $(or $(DEVICES),5000) --kills $(or $(KILLS),20)

PROOFS := simulate fuzz fuzz-native contracts-mutations mutations fault-runs tamper command-runs
prove: setup ## Run the long proofs, or P="simulate fuzz": SEEDS=500 of each world, FUZZ_SECONDS=60 of each parser, FAULT_RUNS=3 of FAULT_SECONDS=300
	@failed=; for part in $(or $(P),$(PROOFS)); do \
		case $$part in \
			simulate) much="SEEDS=$(or $(SEEDS),500)" ;; \
			fuzz|fuzz-native) much="SECONDS=$(or $(FUZZ_SECONDS),60)" ;; \
			fault-runs) much="RUNS=$(or $(FAULT_RUNS),3) SECONDS=$(or $(FAULT_SECONDS),300)" ;; \
			*) much= ;; \
		esac; \
		echo "prove: make $$part $$much"; \
		$(MAKE) --no-print-directory $$part $$much || failed+=" $$part"; \
	done; \
	[[ -z $$failed ]] || { echo "prove: findings, or not finished:$$failed" >&2; exit 1; }

soak: setup ## Run the soak tests, keep the output in docs/results/soak.txt
	@tools/record-results docs/results/soak.txt $(PYTEST) --no-header -v -m "long and not faults"

fuzz-native: setup ## Fuzz the compiled module of mqtt-proxy with AddressSanitizer and UBSan, SECONDS of processor time for each target; adds to docs/results/fuzzing.txt
	@$(BIN)/python -m isotherm.proofs.fuzzing --native --seconds $(or $(SECONDS),60) $(addprefix --target ,$(T)) $(OPTIONS)

fuzz: setup ## Fuzz the parsers, SECONDS of processor time each, or T="kcql mqtt-ingest"; adds to docs/results/fuzzing.txt
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
		$(BIN)/pip install -q --no-deps --only-binary :all: --require-hashes -r proofs/atheris.lock || \
		echo "fuzz: there is no wheel of atheris for this machine: inputs are random changes" >&2
	@$(BIN)/python -m isotherm.proofs.fuzzing --seconds $(or $(SECONDS),60) $(addprefix --target ,$(T)) $(OPTIONS)

bench-persisters: setup ## Compare the persisters with each sink's own client, all cases or C="cassandra"
	@for case in $(or $(C),decoding elasticsearch cassandra hazelcast-map hazelcast-map-revisions hazelcast-ring-buffer); do \
		tools/record-section docs/results/bench-persisters.txt "$$case" \
			$(BIN)/python bench/persisters/compare.py --only "$$case"; \
	done

bench-aggregator: setup ## Compare the aggregator with Kafka Streams, for 30,000 and 300,000 devices or N="30000"
	@for devices in $(or $(N),30000 300000); do \
		tools/record-section docs/results/bench-aggregator.txt "$$devices devices" \
			$(BIN)/python bench/aggregator/catch_up.py --devices "$$devices" $(OPTIONS); \
	done

bench-reaction: setup ## Measure how soon the aggregates of a final window are in Kafka, at 20,000 readings/s
	@tools/record-section docs/results/bench-aggregator.txt reaction \
		$(BIN)/python bench/aggregator/reaction.py $(OPTIONS)

bench-live: setup ## Compare the aggregator with Kafka Streams at 115,741 readings/s of 1,200,000 devices for ten minutes, or OPTIONS="--rate 20000 --devices 30000"
	@tools/record-section docs/results/bench-aggregator.txt "live $(OPTIONS)" \
		$(BIN)/python bench/aggregator/live.py $(OPTIONS)

bench-partitions: setup ## Measure what partitions of the aggregator's state cost at rest, at few readings and at many
	@tools/record-section docs/results/bench-aggregator.txt partitions \
		$(BIN)/python bench/aggregator/state_partitions.py $(OPTIONS)

bench-alerts: setup ## Measure the alerts service, all cases or C="reaction"
	@for case in $(or $(C),capacity headline reaction recovery); do \
		PYTHONPATH=bench/aggregator:bench/mqtt-proxy tools/record-section docs/results/bench-alerts.txt "$$case" \
			$(BIN)/python bench/alerts/alerts_bench.py $$case $(OPTIONS); \
	done

bench-revisions: setup ## Compare with an older revision's checkout, all cases or C="mqtt": make bench-revisions BEFORE=../before
	@for case in $(or $(C),mqtt coap persisters aggregator alerts); do \
		tools/record-section docs/results/bench-revisions.txt "$$case" \
			$(BIN)/python bench/revisions/compare_revisions.py --only "$$case" \
			--before "$(or $(BEFORE),$(error say where the older revision is checked out: BEFORE=../before))" $(OPTIONS); \
	done

bench-whole: setup ## Measure the demo's whole system at rest and under several rates, or R="220 2000"; keeps the last committed table
	@if git cat-file -e HEAD:docs/results/bench-whole.txt 2>/dev/null; then \
		git show HEAD:docs/results/bench-whole.txt >docs/results/bench-whole-before.txt; fi
	@tools/record-section docs/results/bench-whole.txt "$(strip $(or $(R),all rates) $(OPTIONS))" \
		$(BIN)/python bench/whole/whole_bench.py $(if $(R),--rates $(R)) $(OPTIONS)

lock: ## Resolve the dependencies again (for maintainers; needs uv)
	@tools/lock

clean: ## Remove the files that tools create; the environment and the servers' data stay
	@find . -path ./.venv -prune -o -type d \( -name __pycache__ -o -name .pytest_cache -o -name .mypy_cache \
		-o -name .ruff_cache -o -name .hypothesis -o -name build \) -prune -exec rm -rf {} +
