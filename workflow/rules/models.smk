if STUDY.model.source != "directory":

    rule model:
        output:
            directory(model_dir(STUDY.model)),
        params:
            model=digest(vars(STUDY.model)),
        log:
            f"results/models/{STUDY.model.name}.log",
        retries: 1
        shell:
            "{RUN} model --study {STUDY.file} --log {log}"
