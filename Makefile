PYTHON ?= python3
STUDY ?= config/local.yaml
ENV ?= cpu
# Recipes have it from their environment, as it was typed: neither make nor a shell looks into it.
unexport STUDY
export STUDY_FILE := $(value STUDY)
# One engine an environment: the CPU's and the GPU's builds of vLLM are one package to Python.
VENV := $(if $(filter gpu,$(ENV)),.venv-gpu,.venv)
BIN := $(VENV)/bin
DEV := .venv-dev/bin
# The kernel drops this lock with the last process that holds it, however it ends; Snakemake's own
# would outlive a killed run and stop the next one.
ONE_AT_A_TIME := mkdir -p results && flock -n -E 75 results/.lock

# Python is new enough, or a sentence.
define PYTHON_OR_SAY
@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12 ..." >&2; exit 1; }
endef

# Everything but tests, with the tools of the environment $(1).
define LINT
$(1)/ruff check .
$(1)/ruff format --check .
$(1)/snakefmt --check Snakefile workflow/rules
$(1)/mypy
endef

.PHONY: help study rehearsal env dev check test cluster-test lint docs bench clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

study: env  ## the whole study, from nothing to results/<name>/report.html
	@$(BIN)/specamort check --study="$$STUDY_FILE"
	@$(ONE_AT_A_TIME) $(BIN)/snakemake --profile profiles/local --nolock --configfile="$$STUDY_FILE" || \
	  { s=$$?; [ $$s -ne 75 ] || echo "another study is running here; wait for it" >&2; exit $$s; }
	@$(BIN)/python -c 'import sys; from specamort.study.study_file import read_study; \
	  print("report:", read_study(sys.argv[1]).results / "report.html")' "$$STUDY_FILE"

rehearsal: export STUDY_FILE := $(if $(filter file,$(origin STUDY)),config/study.yaml,$(value STUDY))
rehearsal: env  ## the published study without its GPUs, on this machine; STUDY=... for another
	@$(BIN)/specamort rehearse --study="$$STUDY_FILE"

env: $(VENV)/$(ENV)  ## the pinned environment; ENV=gpu for GPU nodes

$(VENV)/$(ENV): envs/$(ENV).lock envs/$(ENV).post-deploy.sh pyproject.toml
	$(PYTHON_OR_SAY)
	"$(PYTHON)" -m venv $(VENV)
	PATH="$$PWD/$(BIN):$$PATH" envs/$(ENV).post-deploy.sh
	touch $@

dev: .venv-dev/made  ## a light environment in .venv-dev, without an engine; PYTHON=python3.13

# At the versions of cpu.lock; not numpy, of which the SLURM executor asks for a newer one than the
# engine can have.
.venv-dev/made: pyproject.toml envs/cpu.lock
	$(PYTHON_OR_SAY)
	"$(PYTHON)" -m venv .venv-dev
	grep -v '^numpy==' envs/cpu.lock > .venv-dev/versions.txt
	$(DEV)/pip install -q --disable-pip-version-check -c .venv-dev/versions.txt -e '.[dev]'
	touch $@

wheelhouse: envs/gpu.lock  ## the packages of gpu.lock, to carry to nodes without a network
	"$(PYTHON)" -m pip wheel --no-deps -r $< -w $@

check: dev  ## lint, types and the unit tests that need no engine, in the light environment
	$(call LINT,$(DEV))
	$(DEV)/pytest tests/unit -n auto --maxprocesses 8

test: env  ## everything, the real engine included
	$(BIN)/pytest -n auto --dist loadscope --no-loadscope-reorder \
	  tests/engine tests/unit tests/workflow tests/attacks  # the long ones first, side by side
	$(BIN)/pytest tests/cluster

cluster-test: env  ## the DAG through a real SLURM on this machine (Debian, as root)
	tests/cluster/slurm-cluster start
	$(BIN)/pytest tests/cluster; s=$$?; tests/cluster/slurm-cluster stop; exit $$s

lint: env  ## lint and types, with the tools of the whole environment
	$(call LINT,$(BIN))
	$(BIN)/snakemake --lint

docs:  ## docs/configuration.md, from the schemas
	"$(PYTHON)" docs/generate.py

bench: env  ## the figures of docs/benchmarks.md
	$(BIN)/python benchmarks/harness.py
	PYTHONPATH=tests/support $(BIN)/python benchmarks/analysis.py
	PYTHONPATH=tests/support $(BIN)/python benchmarks/traces.py
	$(BIN)/python benchmarks/scale.py

clean:  ## remove the environments; results stay
	rm -rf .venv .venv-gpu .venv-dev .snakemake
