rule microbench:
    """Streaming, GEMMs and attention through torch alone; sees no speculative cell."""
    input:
        model_dir(STUDY.model),
        PROMPTS,
        self_checked,
    output:
        update("results/{study}/raw/microbenchmark/{platform}.json"),
    log:
        "results/{study}/logs/microbench/{platform}.log",
    conda:
        ENVIRONMENT
    threads: ALONE
    resources:
        **REQUEST("microbench"),
        device=1,
    params:
        file=STUDY.file,
        settings=lambda w: digest(STUDY.microbench_settings(w.platform)),
    message:
        "Microbenchmark of {wildcards.platform}: kernel times for the roofline"
    shell:
        "specamort microbench --study {params.file} --platform {wildcards.platform} --log {log}"
