if STUDY.model.source != "directory":

    rule model:
        output:
            directory(model_dir(STUDY.model)),
        log:
            f"results/models/{STUDY.model.name}.log",
        retries: 1
        conda:
            ENVIRONMENT
        params:
            file=STUDY.file,
            model=digest(vars(STUDY.model)),
        message:
            "Preparing the model"
        shell:
            "specamort model --study {params.file} --log {log}"
