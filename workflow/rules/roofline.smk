rule microbench:
    """Streaming, GEMMs and attention through torch alone; sees no speculative cell."""
    input:
        model_dir(STUDY.model),
    output:
        RESULTS / "raw/microbenchmark/{platform}.json",
    params:
        grid=[STUDY.gammas, STUDY.batches, STUDY.context_tokens],
        platform=lambda w: vars(STUDY.platforms[w.platform]),
    log:
        RESULTS / "logs/microbench/{platform}.log",
    threads: ALONE
    resources:
        device=1,
    shell:
        "{RUN} microbench --study {STUDY.file} --platform {wildcards.platform} --log {log}"
