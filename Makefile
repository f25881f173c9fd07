# Everything that is needed is set up on the first call and costs nothing afterwards; see scripts/setup_env.py.
#
#   make train ARGS="--steps 20"     arguments for envhub train
#   make test ARGS="-k registry"     arguments for pytest
#   make bench BENCH=executor_overhead   one benchmark
#   PYTHON=python3.12 make setup     another interpreter (3.11 to 3.13) for a new .venv
#   ENVHUB_EXTRAS=train,dev make setup   other extras of the package than those that fit this machine

SHELL := /bin/bash
ARGS ?=
# An interpreter that is only a placeholder of a version manager fails to run and is passed over.
FIND_PYTHON = for candidate in $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python); do \
		if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; \
		then echo "$$candidate"; exit 0; fi; \
	done; \
	echo "envhub needs Python 3.11, 3.12 or 3.13, and found none in: $(or $(PYTHON),PATH); install one, or name it: make PYTHON=/path/to/python3" >&2; \
	exit 1

BENCH ?= $(patsubst benchmarks/%.py,%,$(shell grep -l __main__ benchmarks/*.py))

.PHONY: help setup train test lint bench clean

help:
	@echo "make train   set up, then train SmolLM2 on sandbox_code with REINFORCE (ARGS=... for other flags)"
	@echo "make test    set up, lint, then run the tests (ARGS=... for pytest)"
	@echo "make lint    ruff check, ruff format --check, mypy"
	@echo "make bench   run the benchmarks (BENCH=name for one of them)"
	@echo "make setup   only set up: .venv with what fits this machine (CPU or CUDA)"
	@echo "make clean   remove .venv and everything that is built; keeps runs/"

setup:
	@python="$$($(FIND_PYTHON))" && "$$python" scripts/setup_env.py

train: setup
	.venv/bin/envhub train --env sandbox_code --algo reinforce_baseline $(ARGS)

test: lint
	.venv/bin/python -m pytest $(ARGS)

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: setup
	@failed=; for name in $(BENCH); do \
		echo "== benchmarks.$$name"; .venv/bin/python -m benchmarks.$$name $(ARGS) || failed="$$failed $$name"; \
	done; if [ -n "$$failed" ]; then echo "missed a bar or failed:$$failed" >&2; exit 1; fi

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
