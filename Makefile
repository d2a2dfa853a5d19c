# Every target sets up what it needs: a fresh machine has Python 3.11 to 3.13, make and PyPI.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo

.PHONY: serve test test-exec check bench format protos lock clean

serve: $(VENV)/.runtime $(DEMO)/half_plus_two
	@exec $(BIN)/mpspool start --model half_plus_two=$(DEMO)/half_plus_two

$(DEMO)/half_plus_two: $(VENV)/.runtime
	$(BIN)/python -m mpspool.worker.demo $(DEMO)

test: $(VENV)/.dev
	@command -v g++ >/dev/null || { apt-get update -qq && apt-get install -y -qq g++; }
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# What starts pools, once more with workers that are processes of their own, as on GPUs.
test-exec: $(VENV)/.dev
	MPSPOOL_WORKERS_START=exec $(BIN)/python -m pytest tests/conformance tests/integration tests/chaos

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.dev
	$(BIN)/python -m bench $(BENCH_ARGS)

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
	$(LOCK) -c constraints.txt --extra build --extra dev --extra bench -o constraints-dev.txt

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "mpspool needs Python 3.11, 3.12 or 3.13 (TensorFlow 2.21 has no wheel for 3.14):" \
		"install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: constraints.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: constraints-dev.txt $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints-dev.txt
	@touch $@

clean:
	rm -rf $(VENV) $(DEMO) .cache
