rule self_check:
    """The first job on each GPU: is this node, with its software, fit to measure on?"""
    input:
        model_dir(STUDY.model),
        PROMPTS,
    output:
        records("self_check"),
    log:
        "results/{study}/logs/self_check/{platform}.log",
    # what is wrong with a node is still wrong the next time
    retries: 0
    conda:
        ENVIRONMENT
    threads: ALONE
    resources:
        **REQUEST("self_check"),
        device=1,
    # No parameters that change: what ran again would make every measurement stale, and every
    # measuring job looks for itself whether its node was checked.
    params:
        file=lambda w: STUDY.file,
    message:
        "Self-check of {wildcards.platform}: engine, counters, tracer, device"
    shell:
        "specamort self-check --study={params.file:q} --platform {wildcards.platform:q} --log {log:q}"
