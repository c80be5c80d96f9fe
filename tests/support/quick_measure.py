"""In the place of `specamort.cli.measure`: jobs that write synthetic records, slowly.

`tests/support/clusters.py` puts it into a copy of the package. QUICK_CELL_S is what a cell takes,
QUICK_MB the memory of a block's job.
"""

import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import synthetic

from ..records.block import Block
from ..study.layout import KINDS, jobs
from ..study.study_file import read_study


def add(command) -> None:
    for rule in KINDS:
        job = command(rule.replace("_", "-"), _job(rule), "a stand-in", platform=True)
        job.add_argument("--replicate", type=int)


def _job(rule):
    def run(args, terminal):
        study = read_study(args.study)
        with tempfile.TemporaryDirectory() as made:
            synthetic.write_study(study, Path(made))
            (job,) = (
                j
                for j in jobs(study, Path(made), rule)
                if (j.platform, j.replicate) == (args.platform, args.replicate)
            )
            ready = {w.path.stem: json.loads(w.path.read_text()) for w in job.wanted}
            settings = {w.path.stem: w.settings for w in job.wanted}
        home = study.results / "raw" / job.wanted[0].path.parent.relative_to(Path(made) / "raw")
        source = synthetic.provenance(study, args.platform) | {
            "job_id": os.environ.get("SLURM_JOB_ID"),
            "job_started": datetime.now(UTC).isoformat(),
        }
        _fill = b" " * int(os.environ.get("QUICK_MB", "0")) * 2**20
        with Block(home, settings, source, terminal) as block:
            for cell in block.missing:
                started = datetime.now(UTC).isoformat()
                time.sleep(float(os.environ.get("QUICK_CELL_S", "1")))
                times = {"started": started, "finished": datetime.now(UTC).isoformat()}
                ready[cell]["provenance"] = source | times
                block.write(cell, ready[cell])

    return run
