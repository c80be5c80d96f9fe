rule analyse:
    """Records to tables. Acceptance is calibrated on one platform, the others are held out."""
    input:
        expand(
            RECORDS,
            study=STUDY.name,
            platform=STUDY.platforms,
            replicate=range(STUDY.replicates),
        ),
        expand(
            rules.microbench.output + rules.trace.output,
            study=STUDY.name,
            platform=STUDY.platforms,
        ),
        expand(
            rules.count.output + rules.overhead.output,
            study=STUDY.name,
            platform=STUDY.calibration.name,
        ),
        code=expand(
            "workflow/specamort/{file}",
            file=[
                *("analysis.py", "decomposition.py", "equation.py", "roofline.py"),
                *("tables.py", "claims.py", "trace.py", "gpu.py"),
                *("published.yaml", "vendor.yaml"),
            ],
        ),
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
