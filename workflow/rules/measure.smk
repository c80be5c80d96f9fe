rule measure:
    """One block: a platform, a replicate, one device, every gamma."""
    input:
        model_dir(STUDY.model),
        PROMPTS,
        self_checked,
    output:
        records("measure"),
    log:
        "results/{study}/logs/measure/{platform}-r{replicate}.log",
    conda:
        ENVIRONMENT
    threads: ALONE
    resources:
        **REQUEST("measure"),
        device=1,
    params:
        file=lambda w: STUDY.file,
        settings=settings_of("measure"),
    message:
        "Measuring block r{wildcards.replicate} on {wildcards.platform}: every gamma, one device"
    shell:
        "specamort measure --study={params.file:q} --platform {wildcards.platform:q} "
        "--replicate {wildcards.replicate:q} --log {log:q}"


rule counter_run:
    """The study's separate counter run: the same speculative cells, untimed."""
    input:
        model_dir(STUDY.model),
        PROMPTS,
        self_checked,
    output:
        records("counter_run"),
    log:
        "results/{study}/logs/counter_run/{platform}.log",
    conda:
        ENVIRONMENT
    threads: ALONE
    resources:
        **REQUEST("counter_run"),
        device=1,
    params:
        file=lambda w: STUDY.file,
        settings=settings_of("counter_run"),
    message:
        "Counter run on {wildcards.platform}: acceptance, untimed"
    shell:
        "specamort counter-run --study={params.file:q} --platform {wildcards.platform:q} "
        "--log {log:q}"


rule reading_cost:
    """One cell with the engine's statistics on, then off."""
    input:
        model_dir(STUDY.model),
        PROMPTS,
        self_checked,
    output:
        records("reading_cost"),
    log:
        "results/{study}/logs/reading_cost/{platform}.log",
    conda:
        ENVIRONMENT
    threads: ALONE
    resources:
        **REQUEST("reading_cost"),
        device=1,
    params:
        file=lambda w: STUDY.file,
        settings=settings_of("reading_cost"),
    message:
        "Cost of reading the counters on {wildcards.platform}"
    shell:
        "specamort reading-cost --study={params.file:q} --platform {wildcards.platform:q} "
        "--log {log:q}"
