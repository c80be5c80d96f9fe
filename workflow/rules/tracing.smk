rule trace:
    """Pairs of traced runs: what a decode step and a verify step are made of, every model."""
    input:
        [model_dir(m) for m in STUDY.models.values()],
        PROMPTS,
        self_checked,
    output:
        records("trace"),
    log:
        "results/{study}/logs/trace/{platform}.log",
    conda:
        ENVIRONMENT
    threads: ALONE
    resources:
        **REQUEST("trace"),
        device=1,
    params:
        file=lambda w: STUDY.file,
        settings=settings_of("trace"),
    message:
        f"Tracing on {{wildcards.platform}} with {STUDY.tracing.tracer}: device and host time of a step"
    shell:
        "specamort trace --study={params.file:q} --platform {wildcards.platform:q} "
        "--log {log:q}"
