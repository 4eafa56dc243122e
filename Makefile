# One environment, made once in .venv: `make knee` and `make test` need nothing but Python 3.11 or later.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := $(VENV)/.torch

SCENARIO ?= scenarios/chat-8b-a100.yaml
OUT ?= out/$(basename $(notdir $(SCENARIO)))
FILE ?= $(wildcard tests/recordings/*.jsonl.gz tests/recordings/*/*.jsonl.gz)

.PHONY: knee test docs validate bench lint conformance clean

knee: $(STAMP)  ## the demonstration: how much of this traffic can one GPU serve?
	$(BIN)/kneesim knee $(SCENARIO) --out $(OUT)

test: $(STAMP) $(TORCH)  ## all tests but the slow ones, on all cores; a file stays on one
	$(BIN)/python -m pytest -m "not slow" -n auto --dist loadfile

docs: $(STAMP)  ## write the pages and the README's numbers again, from what is simulated now
	@for page in traces workloads benchmark claims engine_claims engines worked_example scenario_keys readme; do $(BIN)/python docs/$$page.py || exit $$?; done

validate: $(STAMP)  ## measured servers against ours, then how often intervals hold the true knee (hours)
	$(BIN)/kneesim validate tests/data/points.csv --out out/accuracy
	$(BIN)/python docs/accuracy.py
	$(BIN)/python -m pytest -m slow -s tests/test_accuracy.py tests/test_knee_interval.py tests/test_knee_windows.py tests/test_coverage_llm.py

bench: $(STAMP)  ## the simulator's own speed, in bare timeouts
	$(BIN)/kneesim bench

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

conformance: $(STAMP)  ## our scheduler against recorded schedules; FILE=recording.jsonl for another one
	@test -n "$(FILE)" || { echo "no recording in tests/recordings; give one: make conformance FILE=recording.jsonl"; exit 2; }
	@for file in $(FILE); do $(BIN)/kneesim conformance "$$file" || exit $$?; done

clean:
	rm -rf $(VENV) out build dist

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "kneesim needs Python 3.11 or later, and $(PYTHON) is $$($(PYTHON) --version 2>&1);" \
	       "name another: make PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

# Some tests of `calibrate measure` run PyTorch's kernels on the CPU. They are skipped where its build for the CPU
# is not to be had: the one for CUDA is gigabytes.
$(TORCH): $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0+cpu' 2>/dev/null \
	  || echo "no CPU build of PyTorch here: the tests that run its kernels are skipped"
	@touch $(TORCH)
