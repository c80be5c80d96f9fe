"""Config to validated study, the rules, the targets. `snakemake -n` prints the plan."""

import os
import sys
from functools import partial
from pathlib import Path
from shlex import quote

from snakemake.exceptions import WorkflowError
from snakemake.persistence import FileBackupMixin

from specamort.analysis.tables import table_paths
from specamort.cluster.cluster_file import STRICT, read_cluster
from specamort.cluster.preflight import require_site
from specamort.cluster.resources import requests
from specamort.cluster.running import claim
from specamort.errors import SpecamortError
from specamort.study.layout import KINDS, outputs
from specamort.study.layout import jobs as measuring_jobs
from specamort.study.model_files import is_there, model_dir
from specamort.study.prompt_check import check_prompts
from specamort.study.settings import digest
from specamort.study.study_file import read_study

# Snakemake would merge several files into one study; each of them is a study of its own.
CONFIGS = [os.path.relpath(f) for f in workflow.overwrite_configfiles] or [
    "config/local.yaml"
]
if len(CONFIGS) > 1:
    raise WorkflowError(
        f"one study at a time, but --configfile names {', '.join(CONFIGS)}"
    )
try:
    STUDY = read_study(CONFIGS[0])
    CLUSTER = read_cluster(config["cluster"], STUDY) if "cluster" in config else None
except SpecamortError as e:
    raise WorkflowError(str(e)) from None

# A platform's jobs go where the cluster file says; without one they run here. A rehearsal asks for
# what its study would.
REQUESTED = read_study(STUDY.rehearses) if STUDY.rehearses else STUDY
REQUEST = partial(requests, REQUESTED, CLUSTER, Path.cwd())

if CLUSTER:
    from specamort.cluster.executor import mend

    mend(Path.cwd(), STUDY)
# the executor takes it out of the environment
SLURM_JOB = os.environ.get("SLURM_JOB_ID")

# Snakemake copies what `update` names before a job, and puts it back when the job fails: over what
# another job of the block has written since. Records need no copy, nothing overwrites one.
FileBackupMixin.backup_output = lambda self, path: None
FileBackupMixin.restore_output = lambda self, path: False


onstart:
    try:
        if CLUSTER:
            # a controller outlasts an outage; who types the command is told at once
            require_site(REQUESTED, CLUSTER, patience_s=3600 if SLURM_JOB else 0)
        claim(RESULTS, SLURM_JOB)
        if all(map(is_there, STUDY.models.values())):
            check_prompts(STUDY)
    except SpecamortError as e:
        raise WorkflowError(str(e)) from None


# Snakemake would take the braces of a path for its own.
literal = lambda text: text.replace("{", "{{").replace("}", "}}")

# Every measuring rule needs the device, and a quiet machine, to itself: it asks for more threads
# than a machine has and gets them all. Rehearsals measure nothing and run side by side.
ALONE = 1 if STUDY.rehearses else 256
RESULTS = STUDY.results
KIND = "gpu" if any(p.device == "cuda" for p in STUDY.platforms.values()) else "cpu"
ENVIRONMENT = literal(str(Path(workflow.basedir) / f"envs/{KIND}.yaml"))
STUDY_HASH = digest(Path(STUDY.file).read_text(encoding="utf-8"))

# Jobs run in the environment that runs Snakemake, on whatever PATH they are started.
BIN = quote(str(Path(sys.executable).parent))
PREFIX = f"export PATH={BIN}:$PATH; {CLUSTER.prefix(Path.cwd()) if CLUSTER else STRICT}"
shell.prefix(literal(PREFIX))


# What is light, and what needs the network, runs where Snakemake runs.
localrules:
    all,
    model,
    prompts,
    analyse,
    figures,
    report,


wildcard_constraints:
    study=STUDY.name,
    platform="|".join(STUDY.platforms),
    replicate=r"\d+",


include: "workflow/rules/common.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/prompts.smk"
include: "workflow/rules/self_check.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/roofline.smk"
include: "workflow/rules/tracing.smk"


if STUDY.dial_cells:

    include: "workflow/rules/dial.smk"


include: "workflow/rules/analysis.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    # By name all the report rests on: Snakemake lets an intermediate file go missing.
    input:
        rules.report.output,
        rules.report.input,
        rules.analyse.input,
    message:
        "Done"
