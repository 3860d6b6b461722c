# Mantle's entry points. `make run` and `make test` ask nothing and install what they need (as root, on Debian 12).
# The work is done by patroni/stack (the local stack), patroni/cluster (`make cluster`) and tests/run.py (the tests); see patroni/README.md.

PYTHON    ?= $(shell command -v python3.11 || command -v python3)
PORT_BASE ?=
FULL      ?=
ONLY      ?=
SECONDS   ?= 600
SEED      ?= 0
SEEDS     ?= 10000
PAIRS     ?= 6
FAULT     ?=
TEST      ?=
PLAIN     ?=
S3_TESTS  ?=
KEEP      ?=
OBJECTS   ?=
BLOCK_BYTES ?=
PG        ?=
ALSO      ?=
STACK      = PYTHONPATH=patroni $(PYTHON) -m stack
CLUSTER    = PYTHONPATH=patroni $(PYTHON) -m cluster
SUITE      = $(PYTHON) tests/run.py
export PYTHONDONTWRITEBYTECODE = 1
# The major version of PostgreSQL: 15 from Debian, or another that patroni/stack/servers.py names.
export MANTLE_PG := $(or $(PG),$(MANTLE_PG))

.DEFAULT_GOAL := help
.PHONY: help run stop status clean install build test one property simulate fuzz lint bench soak chaos chaos-proof clients conformance exercises python cluster cluster-status cluster-worker cluster-stop

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

python:
	@test -n "$(PYTHON)" || { echo 'mantle: Python 3.11 or newer is needed and `python3` is not installed: apt-get install python3' >&2; exit 1; }

run: python ## Install, build, start everything under .run/ and load the Debian archive's list (FULL=1: all of it; PG=18: on that version of PostgreSQL, of 15 to 18)
	@$(STACK) run $(if $(PORT_BASE),--port-base $(PORT_BASE)) $(if $(FULL),--full)

stop: python ## Stop what `make run` started; the data stays
	@$(STACK) stop $(if $(PORT_BASE),--port-base $(PORT_BASE))

status: python ## Show the services, and the role and position of each replica
	@$(STACK) status $(if $(PORT_BASE),--port-base $(PORT_BASE))

cluster: python ## Start a highly available cluster under .cluster/: etcd, Patroni, Citus where it is installed, 4 IndexNodes, 2 gateways, a store of object bytes (PLAIN=1: without Citus; PG=18: on that version of PostgreSQL)
	@$(CLUSTER) start $(if $(PLAIN),--plain)

cluster-status: python ## Show the services of each host, the leaders, and what is missing
	@$(CLUSTER) status

cluster-worker: python ## Add a Citus worker with a standby to the running cluster
	@$(CLUSTER) add-worker

cluster-stop: python ## Stop what `make cluster` started; the data stays
	@$(CLUSTER) stop

clean: python ## Stop everything and remove .run/, .cluster/, .test/, .test-also/, .test-cluster/, .chaos/, .concurrency/, .bench/, .bench-tls/, .clients/, .conformance/, .test-upgrade/ with all data (not target/)
	@$(CLUSTER) clean
	@$(CLUSTER) clean --folder .test-cluster
	@$(CLUSTER) clean --folder .chaos
	@$(STACK) clean $(if $(PORT_BASE),--port-base $(PORT_BASE))
	@$(STACK) clean --folder .test
	@$(STACK) clean --folder .test-also
	@$(STACK) clean --folder .concurrency
	@$(STACK) clean --folder .bench
	@$(STACK) clean --folder .bench-tls
	@$(STACK) clean --folder .clients/stack
	@$(STACK) clean --folder .conformance/stack
	@$(STACK) clean --folder .test-upgrade/stack
	@$(STACK) clean --folder .test-upgrade/alone
	@rm -rf .test-upgrade
	@rm -rf .clients
	@rm -rf .conformance
	@rm -rf tests/.venv

install: python ## Install what the build needs
	@$(STACK) install

build: python ## Build the services and the extension
	@$(STACK) build

test: python ## Install, build, run every test against a stack of its own under .test/ (ONLY=e2e: one phase; PG=18: on that version; ALSO=18: pgTAP, upgrades and e2e on that version too, ALSO=18=pgtap,server: some of these, server being the part of e2e that depends on the version)
	@$(SUITE) $(if $(ONLY),--only $(ONLY)) $(if $(ALSO),--also "$(ALSO)")

one: python ## Run one test: TEST=tests/e2e/test_renames.py::test_x, TEST=tests/pgtap/listing.sql, TEST=index::tests::rules
	@$(SUITE) --one "$(TEST)"

property: python ## Run random concurrent histories against the model, for SECONDS=600
	@$(SUITE) --property $(SECONDS)

chaos: python ## Cause every fault on a whole cluster under load, then PAIRS=6 drawn by SEED=0, and judge the histories; writes docs/chaos.md (FAULT=name: those alone)
	@$(SUITE) --chaos --seed $(SEED) --pairs $(PAIRS) $(if $(FAULT),--only "$(FAULT)") $(if $(PLAIN),--plain)

exercises: python ## Play an administrator's exercises on a whole cluster under load, typing docs/runbooks.md; writes docs/exercises.md
	@MANTLE_CLUSTER_LONG=1 MANTLE_EXERCISES=1 $(SUITE) --one tests/cluster/test_exercises.py

chaos-proof: python ## Check that `make chaos` would notice a missing protection: leave out one at a time (ONLY=name); writes docs/chaos-proof.md
	@$(SUITE) --chaos-proof --seed $(SEED) $(if $(ONLY),--only "$(ONLY)") $(if $(PLAIN),--plain)

clients: python ## Let real S3 clients do their work, each in an environment of its own, and write docs/clients.md (ONLY=regex: some clients, no page)
	@$(SUITE) --clients $(if $(ONLY),--only "$(ONLY)")

conformance: python ## Run public suites of S3 from checkouts of them, S3_TESTS=path (ceph/s3-tests) and VERSITYGW=path, and compare with the kept lists of failures (KEEP=1: renew the lists; ONLY=name: some tests)
	@test -n "$(S3_TESTS)$(VERSITYGW)" || { echo "S3_TESTS=path or VERSITYGW=path is missing: a checkout of github.com/ceph/s3-tests, or of github.com/versity/versitygw" >&2; exit 2; }
	@$(SUITE) --conformance $(if $(S3_TESTS),--s3-tests "$(S3_TESTS)") $(if $(VERSITYGW),--versitygw "$(VERSITYGW)") $(if $(KEEP),--keep) $(if $(ONLY),--only "$(ONLY)")

fuzz: python ## Run the fuzz targets of parsers of untrusted bytes, for SECONDS=600 each (ONLY=regex: some)
	@$(SUITE) --fuzz $(SECONDS) $(if $(ONLY),--target "$(ONLY)")

simulate: python ## Run one seed of the IndexNode simulation, SEED=0, with its trace
	@$(SUITE) --simulate $(SEED)

lint: python ## Check format, warnings, documentation, imports, links and words
	@$(SUITE) --only lint

bench: python ## Measure load, memory, latencies and baselines on a stack of its own; writes docs/bench.md (FULL=1: the whole list; ONLY=contention, ONLY=lookup: a part; ONLY=puts: on PostgreSQL alone; ONLY=versions: PostgreSQL 18 against 15; ONLY=volumes: the store of objects' bytes alone; ONLY=put: objects in files and in a volume, and puts beside the MinIO in PEERS=DIR; ONLY=volume-size: a volume of OBJECTS=10000000 objects of 1 KiB in blocks of BLOCK_BYTES=4096; ONLY=inline: small objects in a volume and inside PostgreSQL; ONLY=citus: Citus against plain PostgreSQL; ONLY=tls: what TLS costs; ONLY=requests: whole requests, beside the services in PEERS=DIR; ONLY=s3: objects, beside PEER=name,url,pid, with its keys in MANTLE_PEER_ACCESS_KEY and MANTLE_PEER_SECRET_KEY)
	@$(STACK) bench $(if $(FULL),--full) $(if $(ONLY),--only $(ONLY)) $(if $(PEER),--peer "$(PEER)") $(if $(PEERS),--peers "$(PEERS)") $(if $(OBJECTS),--objects "$(OBJECTS)") $(if $(BLOCK_BYTES),--block-bytes "$(BLOCK_BYTES)") $(if $(PORT_BASE),--port-base $(PORT_BASE))

soak: python ## Run SEEDS=10000 seeds of the simulation; hold dirstat of a hot directory to its bounds for SECONDS=600 on a stack of its own, writes docs/soak.md
	@MANTLE_SIMULATION_SEEDS=$(SEEDS) $(SUITE) --only simulation
	@$(STACK) soak --seconds $(SECONDS) $(if $(PORT_BASE),--port-base $(PORT_BASE))
