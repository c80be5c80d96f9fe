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
        file=lambda w: STUDY.file,
        study=STUDY_HASH,
    message:
        "Tables"
    shell:
        "specamort analyse --study={params.file:q} --log {log:q}"
