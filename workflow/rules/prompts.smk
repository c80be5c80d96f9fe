rule prompts:
    """Every prompt of the study, built by the model's tokenizer before a device is asked for.

    The first time; later runs build them when they start (Snakefile, onstart).
    """

    # An `ancient` output that is made anew holds back all behind it, so a touched folder is no
    # reason to make it anew.
    input:
        [ancient(model_dir(m)) for m in STUDY.models.values()],
    output:
        "results/{study}/prompts.txt",
    log:
        "results/{study}/logs/prompts.log",
    conda:
        ENVIRONMENT
    # No parameters that change: what ran again would make every measurement stale.
    params:
        file=lambda w: STUDY.file,
    message:
        "Building every prompt"
    shell:
        "specamort check --study={params.file:q} --output {output:q} --log {log:q}"


PROMPTS = ancient(f"results/{STUDY.name}/prompts.txt")
