MODELS = {m.name: m for m in STUDY.models.values() if m.source != "directory"}


rule model:
    input:
        # a random model takes its tokenizer from the study's own
        lambda w: model_dir(STUDY.model) if MODELS[w.model].source == "random" else [],
    output:
        directory("results/models/{model}"),
    log:
        "results/models/{model}.log",
    wildcard_constraints:
        model="|".join(MODELS) or "none",
    retries: 1
    conda:
        ENVIRONMENT
    params:
        file=lambda w: STUDY.file,
        model=lambda w: digest(vars(MODELS[w.model])),
    message:
        "Preparing {wildcards.model}"
    shell:
        "specamort model --study={params.file:q} --model {wildcards.model:q} --log {log:q}"
