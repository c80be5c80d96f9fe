def code(*names):
    """Package modules a rule's result depends on: edit one and the rule runs again."""
    return [f"workflow/specamort/{n}" for n in names]


rule analyse:
    """Records to tables. Acceptance is calibrated on one platform, the others are held out."""
    input:
        expand(RECORDS, platform=STUDY.platforms, replicate=range(STUDY.replicates)),
        expand(rules.microbench.output, platform=STUDY.platforms),
        expand(rules.count.output, platform=STUDY.calibration.name),
        expand(rules.overhead.output, platform=STUDY.calibration.name),
        code=code("analysis.py", "equation.py", "roofline.py", "tables.py", "claims.py"),
    output:
        table_paths(RESULTS),
    params:
        study=STUDY_HASH,
    log:
        RESULTS / "logs/analyse.log",
    shell:
        "{RUN} analyse --study {STUDY.file} --log {log}"
