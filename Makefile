# Every target sets up what it needs: a fresh machine has Python 3.11 to 3.13, make and PyPI; for the tests, g++, curl and
# openssl too, and for test-conformance prometheus.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo
# Where there is an NVIDIA GPU, the CUDA libraries that TensorFlow needs for it (2.8 GB) are set up, too: CUDA=0 leaves
# them out, CUDA=1 has them in any case. /proc/driver/nvidia tells nothing: containers without the GPU have it as well.
CUDA ?= $(shell { ls /dev/nvidia[0-9]* || nvidia-smi -L; } >/dev/null 2>&1 && echo 1)
GPU := $(if $(filter 1,$(CUDA)),$(VENV)/.cuda)
# What requests pass through is compiled to C where there is a compiler (docs/adr/0026): COMPILED=0 runs it as it is written.
COMPILED ?= $(MPSPOOL_COMPILED)
export MPSPOOL_COMPILED := $(COMPILED)

.PHONY: serve test test-processes test-weights test-conformance test-chaos test-versions test-exec test-mps test-bench test-gpu check bench bench-gpu format protos lock clean compiler curl openssl prometheus compiled

serve: $(VENV)/.runtime $(GPU) compiled $(DEMO)/half_plus_two
	@exec $(BIN)/mpspool start --model half_plus_two=$(DEMO)/half_plus_two

$(DEMO)/half_plus_two: $(VENV)/.runtime
	$(BIN)/python -m mpspool.worker.demo $(DEMO)

# The chaos tests hold a load while they break things, the benchmarks take all that there is, and the GPU tests a GPU: they
# have the machine to themselves. Here are no more than 2 cores do in 10 minutes; the targets after this one have the rest.
PYTEST := $(BIN)/python -m pytest
UNLOADED := tests/chaos/test_slow_starts.py
VERSIONS := tests/chaos/test_versions.py tests/chaos/test_unfit_versions.py tests/chaos/test_many_versions.py tests/chaos/test_remote_versions.py \
	tests/chaos/test_reload.py tests/integration/test_remote.py
DROP_IN := tests/integration/test_tensorflow_model_server.py tests/integration/test_tls.py \
	tests/integration/test_prometheus.py tests/integration/test_parameters.py tests/integration/test_refusals.py
PROCESSES := $(addprefix tests/integration/,test_processes.py test_model_command.py test_nursery.py test_early_orders.py)
WEIGHTS := $(addprefix tests/integration/,test_pool_weights.py test_publish.py test_shared_weights.py)
# Where it may matter how a worker was started: what it answers, what it maps, and that it dies, is replaced and renewed.
WORKERS := tests/conformance $(addprefix tests/integration/test_,batching.py pool_weights.py scheduling.py warmup.py)
DYING_WORKERS := tests/chaos/test_failures.py tests/mps/chaos/test_gpu_faults.py::test_a_fault_ends_and_renews_the_workers_of_one_gpu \
	$(addprefix tests/chaos/test_versions.py::test_,a_new_version_takes_over a_worker_killed_during_a_swap)
PARALLEL := --numprocesses $(shell nproc) --maxprocesses 8 --dist loadfile

test: $(VENV)/.dev $(GPU) compiler compiled curl openssl
	$(PYTEST) $(PARALLEL) tests/unit tests/integration $(UNLOADED) $(foreach left,$(VERSIONS) $(DROP_IN) $(PROCESSES) $(WEIGHTS),--ignore $(left))
	$(PYTEST) tests/gpu

# A pool's processes: begun, found, told by hand, ended, and left by none.
test-processes: $(VENV)/.dev $(GPU) compiler compiled
	$(PYTEST) $(PARALLEL) $(PROCESSES)

# One copy of the weights: published, mapped, bound, found again.
test-weights: $(VENV)/.dev $(GPU) compiler compiled
	$(PYTEST) $(PARALLEL) $(WEIGHTS)

# TensorFlow Serving's API, command line, files and batching parameters; TLS; bytes of any kind.
test-conformance: $(VENV)/.dev $(GPU) compiler compiled curl openssl prometheus
	$(PYTEST) $(PARALLEL) tests/conformance tests/fuzz $(DROP_IN)

# What dies, hangs or floods under load.
test-chaos: $(VENV)/.dev $(GPU) compiler compiled
	$(PYTEST) tests/chaos $(UNLOADED:%=--ignore %) $(VERSIONS:%=--ignore %)

# Model versions, and the configuration, that change under load.
test-versions: $(VENV)/.dev $(GPU) compiler compiled
	$(PYTEST) $(VERSIONS)

# Once more with processes of their own for workers, and with nothing compiled.
test-exec: export MPSPOOL_COMPILED := 0
test-exec: $(VENV)/.dev $(GPU) compiler curl openssl
	MPSPOOL_WORKERS_START=exec $(PYTEST) $(PARALLEL) $(WORKERS)
	MPSPOOL_WORKERS_START=exec $(PYTEST) $(DYING_WORKERS)

# Pools on stand-ins for GPUs: MPS and its faults, shares, daemons of others, the pod, the doctor.
test-mps: $(VENV)/.dev $(GPU) compiler compiled
	$(PYTEST) $(PARALLEL) tests/mps

# Do the benchmarks run, peers aside? Their figures are nobody's business here.
test-bench: $(VENV)/.dev $(GPU) compiler compiled openssl
	$(PYTEST) tests/bench

test-gpu: $(VENV)/.dev $(GPU) compiled
	$(PYTEST) tests/gpu

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.dev $(GPU) compiled
	$(BIN)/python -m bench $(BENCH_ARGS)

bench-gpu: $(VENV)/.dev $(GPU) compiled
	$(BIN)/python -m bench.gpu $(BENCH_ARGS)

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

protos: $(VENV)/.dev
	$(BIN)/python -m grpc_tools.protoc -I mpspool/core/protos --include_imports \
		--descriptor_set_out mpspool/core/protos/descriptors.binpb $$(cd mpspool/core/protos && find . -name '*.proto' -printf '%P\n' | sort)

# Writes the constraints files anew: no index, no download address, one file for every Python served.
LOCK := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-header --no-annotate --quiet --upgrade pyproject.toml
lock: $(VENV)/.dev
	$(BIN)/pip install --quiet uv
	$(LOCK) --extra build -o constraints.txt
	$(LOCK) -c constraints.txt --extra build --extra cuda -o constraints-cuda.txt
	$(LOCK) -c constraints.txt --extra build --extra dev --extra bench -o constraints-dev.txt

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "mpspool needs Python 3.11, 3.12 or 3.13 (TensorFlow 2.21 has no wheel for 3.14):" \
		"install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -f $@; echo "$(PYTHON) cannot make a virtual environment: on Debian and Ubuntu it" \
		"needs apt-get install $(notdir $(PYTHON))-venv; then run make $(MAKECMDGOALS) again" >&2; exit 1; }

$(VENV)/.runtime: constraints.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.cuda: constraints-cuda.txt $(VENV)/.runtime
	@echo "setting up the CUDA libraries of TensorFlow, a download of 2.8 GB; make $(MAKECMDGOALS) CUDA=0 does without"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints-cuda.txt
	@touch $@

$(VENV)/.dev: constraints-dev.txt $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints-dev.txt
	@touch $@

# Does nothing where nothing has changed, and says so where there is nothing to compile with.
compiled: $(VENV)/.runtime
	@$(BIN)/python hatch_build.py

compiler:
	@command -v g++ >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq \
		&& apt-get install -y -qq g++; } || { echo "the tests compile operators of their own, and there is no g++:" \
		"install it (apt-get install g++, dnf install gcc-c++), then run make $(MAKECMDGOALS) again" >&2; exit 1; }

curl:
	@command -v curl >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq \
		&& apt-get install -y -qq --no-install-recommends curl; } || { echo "the tests ask as people do, by the curl program, and there is none:" \
		"install it (apt-get install curl, dnf install curl), then run make $(MAKECMDGOALS) again" >&2; exit 1; }

openssl:
	@command -v openssl >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq \
		&& apt-get install -y -qq openssl; } || { echo "the tests make certificates by the openssl program, and there is none:" \
		"install it (apt-get install openssl), then run make $(MAKECMDGOALS) again" >&2; exit 1; }

# The package would have a server of its own run on this machine: ours are the tests'.
prometheus:
	@{ command -v prometheus && command -v promtool; } >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus \
		&& { systemctl disable --quiet --now prometheus 2>/dev/null || true; }; } || { echo "a test has a real Prometheus" \
		"scrape a pool, and there are no prometheus and promtool: install them (apt-get install prometheus, dnf install" \
		"golang-github-prometheus, or https://prometheus.io/download), then run make $(MAKECMDGOALS) again" >&2; exit 1; }

clean:
	rm -rf $(VENV) $(DEMO) .cache
