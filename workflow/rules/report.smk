from specamort.figures import figure_paths


rule figures:
    """The study's figures, redrawn for this study: SVG, PDF and PNG."""
    input:
        table_paths(RESULTS),
        code=code("figures.py"),
    output:
        figure_paths(RESULTS),
    params:
        study=STUDY_HASH,
    log:
        RESULTS / "logs/figures.log",
    shell:
        "{RUN} figures --study {STUDY.file} --log {log}"


rule report:
    """One HTML page that can be sent."""
    input:
        table_paths(RESULTS),
        figure_paths(RESULTS),
        code=code("report.py", "templates/report.html"),
    output:
        RESULTS / "report.html",
    params:
        study=STUDY_HASH,
    log:
        RESULTS / "logs/report.log",
    shell:
        "{RUN} report --study {STUDY.file} --log {log}"
