"""A study on a SLURM cluster: check the site, launch, see how far it is."""

import os
from pathlib import Path

from ..errors import SpecamortError
from ..study.study_file import read_study


def add(command) -> None:
    ahead = command("preflight", _preflight, "check a cluster before anything is queued")
    ahead.add_argument("--cluster", required=True, help="cluster file")
    start = command(
        "launch", _launch, "submit the whole study: a controller job that submits the rest"
    )
    start.add_argument("--cluster", required=True, help="cluster file")
    start.add_argument("snakemake", nargs="*", help="after --: more arguments for Snakemake")
    command("status", _status, "how far the study is, by records and SLURM's queue")


def _preflight(args, terminal) -> None:
    from ..cluster.cluster_file import read_cluster
    from ..cluster.preflight import preflight

    study = read_study(args.study)
    checks = preflight(study, read_cluster(args.cluster, study), study.results)
    print(*checks, sep="\n")
    if wrong := sum(c.fix is not None for c in checks):
        raise SpecamortError(f"{wrong} of {len(checks)} to fix before you submit")


def _launch(args, terminal) -> None:
    from ..cluster.cluster_file import USER_FILE, read_cluster, user_setting
    from ..cluster.launch import launch
    from ..cluster.running import holder
    from ..cluster.slurm import controller

    study = read_study(args.study)
    cluster = read_cluster(args.cluster, study)
    there, who = controller(study.name, Path.cwd()), holder(study.results)
    if (there and not there.mine) or (who and not there):
        who = who or f"{there.user} (job {there.id})"
        raise SpecamortError(
            f"{study.results}: {who} runs this study in this clone; wait for it, or work in a "
            "clone of your own; nothing was submitted"
        )
    if there:
        job, log = there.id, next((study.results / "controller").glob(f"{there.id}_*.out"), None)
        print(f"the controller of {study.name} is already there: job {job}")
    else:
        job, log = launch(study, cluster, study.results, args.snakemake)
        print(f"submitted the controller of {study.name}: job {job}")
        if not user_setting("mail"):
            print(f"to hear when it ends, put `mail: YOURS` into {USER_FILE}")
    print(f"  follow it   tail -F {os.path.relpath(log)}" if log else "  it waits for a node")
    print(f"  how far     specamort status --study {args.study}")
    print(f"  stop it     scancel {job} (blocks that were submitted go on)")


def _status(args, terminal) -> None:
    from ..cluster import running, slurm, status

    study, checkout = read_study(args.study), Path.cwd()
    live, job, who = [], None, running.holder(study.results)
    try:
        live = slurm.live_jobs(checkout)
        if job := slurm.controller(study.name, checkout):
            who = f"job {job.id}" + ("" if job.mine else f" of {job.user}")
        print(f"controller: {who}" if who else "no controller is queued or running")
    except SpecamortError as e:
        who = None
        print(f"SLURM's queue is not known ({e}); records only")
    table = status.blocks(study, live, slurm.failed_jobs(checkout))
    spent = slurm.gpu_hours(set().union(*table["spent_by"]))
    print(status.overview(table, spent))
    if who and not live and (job is None or job.running):
        print(*running.stuck(study.results, (table["state"] == "done").all(), job), sep="\n")
