from specamort.report.figures import figure_paths


rule figures:
    """The study's figures, redrawn for this study: SVG, PDF and PNG."""
    input:
        table_paths(RESULTS),
        code=[
            "workflow/specamort/report/figures.py",
            "workflow/specamort/report/style.py",
        ],
    output:
        figure_paths(STUDY, RESULTS),
    log:
        RESULTS / "logs/figures.log",
    conda:
        ENVIRONMENT
    params:
        file=lambda w: STUDY.file,
        study=STUDY_HASH,
    message:
        "Figures"
    shell:
        "specamort figures --study={params.file:q} --log {log:q}"


rule report:
    """One HTML page that can be sent."""
    input:
        table_paths(RESULTS),
        figure_paths(STUDY, RESULTS),
        code=[
            "workflow/specamort/report/page.py",
            "workflow/specamort/report/templates/report.html",
        ],
    output:
        RESULTS / "report.html",
    log:
        RESULTS / "logs/report.log",
    conda:
        ENVIRONMENT
    params:
        file=lambda w: STUDY.file,
        study=STUDY_HASH,
    message:
        "Report: {output}"
    shell:
        "specamort report --study={params.file:q} --log {log:q}"
