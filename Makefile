# fencepost: the two commands are `make demo` and `make test`; both work in a bare clone.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
ARGS ?=
STORE ?=

.PHONY: help demo test experiments quick stress mutate matrix versions greenlets check format setup servers bench fuzz torture torment storm reign model docs lab image lock clean

help: ## Show this help
	@echo 'fencepost: make <target> [ARGS="..."]'
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'New here? `make demo` needs no server and takes under a minute.'

demo: .venv/demo.stamp ## Watch a paused holder corrupt a resource, then be refused
	@.venv/bin/fencepost demo $(ARGS)

test: setup servers ## Run the tests against real servers (STORE=redis: one store; ARGS="-k name": what you name)
	@scripts/test $(if $(STORE),--store "$(STORE)") $(ARGS)

experiments: setup servers ## What is long from end to end, at its smallest size: experiments, torture, load, simulated worlds, greenlets, the page of the simulator, packages
	@scripts/test -m experiment $(ARGS)

quick: setup ## Lint, formatting, types, and every test that needs no server; below a minute
	@scripts/quick $(ARGS)

stress: setup servers ## Repeat tests in random order on a busy machine (ARGS="-n 50 --load 4 PATTERN")
	@scripts/stress $(ARGS)

mutate: setup servers ## Put faults into copies of the source: the tests must notice each (ARGS="'redis-*'")
	@scripts/mutate $(ARGS)

matrix: servers ## What quick does and the conformance suite, on every Python from 3.11 on that is here
	@scripts/matrix $(ARGS)

versions: setup servers ## The conformance suite on every server version that can be downloaded; takes an hour (ARGS="--only redis 6.2")
	@scripts/versions $(ARGS)

greenlets: setup servers ## The conformance suite in a program that gevent, and then eventlet, has patched (ARGS="eventlet -k loss")
	@scripts/greenlets $(ARGS)

check: setup ## Lint, formatting and strict types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: setup ## Rewrite the code in the house style
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

setup: .venv/dev.stamp ## Make .venv with everything; the program is .venv/bin/fencepost
	@:

servers: ## Find or install redis, etcd, ZooKeeper, Consul and Postgres
	@scripts/servers

bench: setup ## Measure, as ratios within one run (ARGS="--quick sqlite")
	$(PY) -m bench $(ARGS)

fuzz: setup ## Give spoilt bytes to every parser, wire and service (ARGS="redis --cases 100000 --seed 5000", --guided)
	@$(PY) -m tests.fuzz $(ARGS)

torture: setup servers ## fencepost torture on every store (ARGS="--operations 100000 --out out/torture --resume"); the page is docs/torture.md
	@.venv/bin/fencepost torture all --out out/torture $(ARGS)

torment: setup servers ## Pauses, kills and interrupts at full size, simulated worlds, mixed fleets, a fleet for 5 min on Redis and etcd
	$(PY) -m tests.programs.torture $(ARGS)
	$(PY) -m tests.programs.mixed --new native
	$(PY) -m tests.programs.mixed --new compat
	FENCEPOST_FUZZ=1 FENCEPOST_INTERRUPTS=500 FENCEPOST_TEST_LIMIT=1500 $(PY) -m pytest --timeout 1600 -n 2 tests/conformance/test_interrupt.py
	FENCEPOST_FUZZ=1 $(PY) -m pytest -n 2 tests/unit tests/sim tests/resource/test_hostile.py tests/backends/test_scripted.py
	$(PY) -m tests.fuzz --cases 20000
	$(PY) -m fencepost sim --seeds 10000
	$(PY) -m fencepost sim --seeds 2000 --calm
	$(PY) -m tests.sim.in_page --seeds 200
	$(PY) -m fencepost fleet sim --seeds 50
	$(PY) -m fencepost fleet sim --seeds 1000 --members 24 --hosts 5 --partitions 30
	$(PY) -m tests.fleet.run --backend redis
	$(PY) -m tests.fleet.run --backend etcd

storm: setup servers ## Tokens over 10,000 grants, killed holders and killed leaders (ARGS="etcd")
	$(PY) -m tests.programs.storm $(ARGS)

reign: setup servers ## Kill 100 leaders among 10 candidates, beside etcdctl elect or kazoo's Election (ARGS="zookeeper")
	$(PY) -m tests.programs.reign $(ARGS)

model: setup ## Check the rule itself with TLC, and that its three controls fail
	$(PY) scripts/model $(ARGS)

lab: setup servers ## Run every experiment in full, and write the report into docs/lab
	@.venv/bin/fencepost lab run all --out docs/lab $(ARGS); held=$$?; .venv/bin/fencepost lab report --from docs/lab && exit $$held

image: setup ## Take the steps of deploy/Dockerfile without Docker, in a clean root, and run what they make (as root)
	@$(PY) scripts/image $(ARGS)

docs: setup servers ## Build the site into out/site without a warning, check its links, and look at it in Chromium
	rm -rf out/site
	$(PY) -m sphinx -W --keep-going -q -b html -d out/doctrees docs out/site
	FENCEPOST_SITE=out/site $(PY) -m pytest -q tests/docs/built_site.py tests/docs/every_page.py tests/docs/test_pages.py tests/docs/test_links.py $(ARGS)
	@echo 'to read it: python3 -m http.server -b 127.0.0.1 -d out/site'

lock: ## Regenerate requirements/*.lock (UPGRADE=1 takes the newest versions)
	scripts/lock

clean: ## Remove .venv, caches and builds
	rm -rf .venv .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/dev.stamp: requirements/dev.lock pyproject.toml lab/pyproject.toml scripts/setup
	@scripts/setup dev

.venv/demo.stamp: requirements/demo.lock pyproject.toml lab/pyproject.toml scripts/setup
	@scripts/setup demo
