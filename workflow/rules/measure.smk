# The study is a wildcard so that SLURM's job comments and logs say whose job it is.
TIMING = "results/{study}/raw/timing/{platform}/r{replicate}"
RECORDS = [f"{TIMING}/{cell}.json" for cell in STUDY.cells]


rule measure:
    """One block: a platform, a replicate, one device, every gamma."""
    input:
        model_dir(STUDY.model),
        PROMPTS,
        self_checked,
    output:
        # update: a record that exists stays; the job measures what is missing.
        [update(r) for r in RECORDS],
    log:
        "results/{study}/logs/measure/{platform}-r{replicate}.log",
    conda:
        ENVIRONMENT
    threads: ALONE
    resources:
        **REQUEST("measure"),
        device=1,
    params:
        file=STUDY.file,
        settings=lambda w: digest([STUDY.settings(w.platform, c) for c in STUDY.cells]),
    message:
        "Measuring block r{wildcards.replicate} on {wildcards.platform}: every gamma, one device"
    shell:
        "specamort measure --study {params.file} --platform {wildcards.platform} "
        "--replicate {wildcards.replicate} --log {log}"


rule count:
    """The study's separate counter run: the same speculative cells, untimed."""
    input:
        model_dir(STUDY.model),
        PROMPTS,
        self_checked,
    output:
        [
            update(f"results/{{study}}/raw/counter/{{platform}}/{c}.json")
            for c in STUDY.cells
            if c.gamma
        ],
    log:
        "results/{study}/logs/count/{platform}.log",
    conda:
        ENVIRONMENT
    threads: ALONE
    resources:
        **REQUEST("count"),
        device=1,
    params:
        file=STUDY.file,
        settings=lambda w: digest(
            [STUDY.counter_settings(w.platform, c) for c in STUDY.cells]
        ),
    message:
        "Counter run on {wildcards.platform}: acceptance, untimed"
    shell:
        "specamort count --study {params.file} --platform {wildcards.platform} --log {log}"


rule overhead:
    """One cell with the engine's statistics on, then off."""
    input:
        model_dir(STUDY.model),
        PROMPTS,
        self_checked,
    output:
        update("results/{study}/raw/overhead/{platform}/on.json"),
        update("results/{study}/raw/overhead/{platform}/off.json"),
    log:
        "results/{study}/logs/overhead/{platform}.log",
    conda:
        ENVIRONMENT
    threads: ALONE
    resources:
        **REQUEST("overhead"),
        device=1,
    params:
        file=STUDY.file,
        settings=lambda w: digest([STUDY.settings(w.platform, c) for c in STUDY.cells]),
    message:
        "Cost of reading the counters on {wildcards.platform}"
    shell:
        "specamort overhead --study {params.file} --platform {wildcards.platform} --log {log}"
