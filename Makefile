# The words of the README. Each makes its own virtual environment if there is none.
#
#   make chat      install, ask a real model one question; on a terminal, go on chatting
#   make test      run the tests, in two processes
#   make check     lint, format, types
#   make docs      write the man pages
#   make bench     measure this machine: benchmarks/this-machine.json; http-parent.json and load-targets.json anew
#   make test-gpu  run the tests that need an NVIDIA GPU

VENV ?= .venv
BIN := $(VENV)/bin
MODEL ?= smollm2-135m
QUESTION := What is the capital of France?

.PHONY: chat test check docs bench test-gpu ready
.DEFAULT_GOAL := chat

chat: $(VENV)/core.stamp
	@echo "> $(QUESTION)"
	@$(BIN)/llmrs chat $(MODEL) -p "$(QUESTION)" --temperature 0 --no-stdin
	@if [ -t 0 ] && [ -t 1 ]; then $(BIN)/llmrs chat $(MODEL); fi

# Two processes with two threads each for the products of NumPy wait for each other most of their time.
test: ready
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest tests -m "not gpu" -n 2 --dist loadfile

check: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/test.stamp
	$(BIN)/python -m llmrs_cli.cli.manpage man

bench: $(VENV)/test.stamp
	-@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'atheris>=3'
	$(BIN)/llmrs bench $(MODEL) --json > benchmarks/this-machine.json
	@$(BIN)/python -m json.tool benchmarks/this-machine.json
	$(BIN)/python -m benchmarks.http_parent --out benchmarks/http-parent.json
	$(BIN)/python -m benchmarks.load_targets --out benchmarks/load-targets.json

test-gpu: $(VENV)/test.stamp
	$(BIN)/python -m pytest tests -m gpu

# -- set-up ---------------------------------------------------------------------------------------

# What tests wait for: the built-in model, and the compiled loops of the CPU backend.
ready: $(VENV)/test.stamp
	$(BIN)/python -m tests.fetch

$(VENV)/core.stamp: pyproject.toml | $(BIN)/python
	@echo "Installing llmrs into $(VENV) ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/test.stamp: pyproject.toml | $(BIN)/python
	@echo "Installing llmrs and its test tools into $(VENV) ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@ $(VENV)/core.stamp

# The first interpreter that runs and is of a supported version wins; PYTHON=... overrides the search.
$(BIN)/python:
	@python=; for p in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; \
	  then python=$$p; break; fi; done; \
	if [ -z "$$python" ]; then \
	  echo "llmrs needs Python 3.11, 3.12 or 3.13: install one and run 'make PYTHON=python3.12'." >&2; exit 1; fi; \
	if ! $$python -c 'import venv, ensurepip' 2>/dev/null; then \
	  echo "$$python has no venv module: install it first (on Debian and Ubuntu: apt install python3-venv)." >&2; exit 1; fi; \
	$$python -m venv $(VENV)
