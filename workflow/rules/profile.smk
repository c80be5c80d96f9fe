rule trace:
    """Pairs of traced runs: what a decode step and a verify step are made of, every model."""
    input:
        [model_dir(m) for m in STUDY.models.values()],
        PROMPTS,
        self_checked,
    output:
        [
            update(f"results/{{study}}/raw/trace/{{platform}}/{c}.json")
            for c in STUDY.trace_cells
        ],
    log:
        "results/{study}/logs/trace/{platform}.log",
    conda:
        ENVIRONMENT
    threads: ALONE
    resources:
        **REQUEST("trace"),
        device=1,
    params:
        file=STUDY.file,
        settings=lambda w: digest(
            [STUDY.trace_settings(w.platform, c) for c in STUDY.trace_cells]
        ),
    message:
        f"Tracing on {{wildcards.platform}} with {STUDY.profile.tracer}: device and host time of a step"
    shell:
        "specamort trace --study {params.file} --platform {wildcards.platform} --log {log}"
