PYTHON ?= python3
STUDY ?= config/local.yaml
ENV ?= cpu
# One engine an environment: the CPU's and the GPU's builds of vLLM are one package to Python.
VENV := $(if $(filter gpu,$(ENV)),.venv-gpu,.venv)
BIN := $(VENV)/bin
# The kernel drops this lock with the last process that holds it, however it ends; Snakemake's own
# would outlive a killed run and stop the next one.
ONE_AT_A_TIME := mkdir -p results && flock -n -E 75 results/.lock

.PHONY: study rehearsal env test cluster-test lint bench clean

study: env  ## the whole study, from nothing to results/<name>/report.html
	@$(BIN)/specamort check --study $(STUDY)
	@$(ONE_AT_A_TIME) $(BIN)/snakemake --profile profiles/local --nolock --configfile $(STUDY) || \
	  { s=$$?; [ $$s -ne 75 ] || echo "another study is running here; wait for it" >&2; exit $$s; }
	@echo "report: results/$$(sed -n 's/^name: *//p' $(STUDY))/report.html"

rehearsal: STUDY = config/study.yaml
rehearsal: env  ## the published study without its GPUs, on this machine; STUDY=... for another
	@$(BIN)/specamort rehearse --study $(STUDY)

env: $(VENV)/$(ENV)  ## the pinned environment; ENV=gpu for GPU nodes

$(VENV)/$(ENV): envs/$(ENV).lock envs/$(ENV).post-deploy.sh pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	PATH=$(CURDIR)/$(BIN):$$PATH envs/$(ENV).post-deploy.sh
	touch $@

wheelhouse: envs/gpu.lock  ## the packages of gpu.lock, to carry to nodes without a network
	$(PYTHON) -m pip wheel --no-deps -r $< -w $@

test: env  ## everything, the real engine included
	$(BIN)/pytest

cluster-test: env  ## the DAG through a real SLURM on this machine (Debian, as root)
	tests/cluster/slurm-cluster start
	$(BIN)/pytest tests/cluster; s=$$?; tests/cluster/slurm-cluster stop; exit $$s

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/snakemake --lint

bench: env  ## the figures of docs/benchmarks.md
	$(BIN)/python benchmarks/harness.py
	PYTHONPATH=tests $(BIN)/python benchmarks/analysis.py
	PYTHONPATH=tests $(BIN)/python benchmarks/traces.py
	$(BIN)/python benchmarks/scale.py

clean:
	rm -rf .venv .venv-gpu .snakemake
