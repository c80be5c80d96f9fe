from pathlib import Path


def numbers_from():
    """Every file of the package that can change a number in a table."""
    package = Path("workflow/specamort")
    parts = ("analysis", "model", "records")
    return sorted(
        str(p)
        for part in parts
        for s in ("*.py", "*.yaml")
        for p in (package / part).rglob(s)
    )


rule analyse:
    """Records to tables. Acceptance is calibrated on one platform, the others are held out."""
    input:
        [
            wanted.path
            for job in measuring_jobs(STUDY)
            if job.kind.rule != "self_check"
            for wanted in job.wanted
        ],
        code=numbers_from(),
    output:
        table_paths(RESULTS),
    log:
        RESULTS / "logs/analyse.log",
    conda:
        ENVIRONMENT
    params:
        file=STUDY.file,
        study=STUDY_HASH,
    message:
        "Tables"
    shell:
        "specamort analyse --study {params.file} --log {log}"
