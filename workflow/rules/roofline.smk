rule microbench:
    """Streaming, GEMMs and attention through torch alone; sees no speculative cell."""
    input:
        model_dir(STUDY.model),
        PROMPTS,
        self_checked,
    output:
        records("microbench"),
    log:
        "results/{study}/logs/microbench/{platform}.log",
    conda:
        ENVIRONMENT
    threads: ALONE
    resources:
        **REQUEST("microbench"),
        device=1,
    params:
        file=lambda w: STUDY.file,
        settings=settings_of("microbench"),
    message:
        "Microbenchmark of {wildcards.platform}: kernel times for the roofline"
    shell:
        "specamort microbench --study={params.file:q} --platform {wildcards.platform:q} "
        "--log {log:q}"
