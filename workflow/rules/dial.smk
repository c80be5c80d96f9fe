rule dial:
    """Step time over acceptance that is asked for: one engine, every draft length."""
    input:
        model_dir(STUDY.model),
        PROMPTS,
        self_checked,
    output:
        records("dial"),
    log:
        "results/{study}/logs/dial/{platform}.log",
    conda:
        ENVIRONMENT
    threads: ALONE
    resources:
        **REQUEST("dial"),
        device=1,
    params:
        file=lambda w: STUDY.file,
        settings=settings_of("dial"),
    message:
        "Dial on {wildcards.platform}: step time over acceptance, one engine for every gamma"
    shell:
        "specamort dial --study={params.file:q} --platform {wildcards.platform:q} "
        "--log {log:q}"
